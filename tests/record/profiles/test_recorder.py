"""Recording with torch's own profiler, and what follows when a profiler fails."""

import contextlib
import gzip
import json
import sys
from types import SimpleNamespace

import pytest
import torch

from rljob_api.spec.profile import Profile
from rljob_runtime.devices.ascend import AscendBackend
from rljob_runtime.devices.cpu import CpuBackend
from rljob_runtime.record.profiles.recorder import Recorder

ASKED = Profile(steps=[2], ranks=[0, 1])


def recorder(opened=None, **others):
    return Recorder(ASKED, 1, opened or CpuBackend(name="emulated:1").profiler, **others)


def work():
    return torch.ones(32, 32) @ torch.ones(32, 32)


def test_a_state_of_a_named_step_leaves_a_chrome_trace_of_its_operators():
    recording = recorder()

    with recording.recording("update", 2):
        work()

    (trace,) = recording.take()
    events = json.loads(gzip.decompress(trace.content))["traceEvents"]
    assert "aten::mm" in {event.get("name") for event in events}
    assert "aten::mm" in {operator.name for operator in trace.operators}
    assert (trace.state, trace.step, trace.rank, trace.problem) == ("update", 2, 1, "")
    assert trace.seconds > 0
    assert recording.take() == []


@pytest.mark.parametrize("step", [0, 1, 3])
def test_other_steps_open_no_profiler(step):
    def opened():
        raise AssertionError("a profiler was opened")

    recording = recorder(opened)

    assert isinstance(recording.recording("update", step), contextlib.nullcontext)
    assert isinstance(Recorder(None, 0, opened).recording("update", 2), contextlib.nullcontext)
    assert isinstance(Recorder(ASKED, 2, opened).recording("update", 2), contextlib.nullcontext)


def test_a_state_that_runs_twice_in_a_step_leaves_two_traces():
    recording = recorder()

    for _ in range(2):
        with recording.recording("generate", 2):
            work()

    assert [trace.occurrence for trace in recording.take()] == [1, 2]


@pytest.mark.parametrize("fails", ["start", "stop", "export_chrome_trace"])
def test_a_profiler_that_fails_does_not_stop_the_work(fails):
    def failing(*_):
        raise RuntimeError("no counters left")

    calls = dict.fromkeys(("start", "stop", "export_chrome_trace"), lambda *_: None)
    recording = recorder(lambda: SimpleNamespace(**calls | {fails: failing}))

    with recording.recording("update", 2):
        done = work()

    (trace,) = recording.take()
    assert done[0, 0] == 32
    assert trace.content == b""
    assert "RuntimeError: no counters left" in trace.problem


def test_an_error_of_the_work_is_raised_as_it_is_and_its_trace_is_kept():
    recording = recorder()

    with pytest.raises(ValueError, match="of the work"), recording.recording("update", 2):
        raise ValueError("of the work")

    assert len(recording.take()) == 1


def test_a_trace_that_is_too_large_is_not_kept():
    recording = recorder(most_bytes=100)

    with recording.recording("update", 2):
        work()

    (trace,) = recording.take()
    assert trace.content == b""
    assert "was not kept" in trace.problem


def test_an_npu_is_recorded_by_torch_npu_whose_silent_failures_are_told(monkeypatch):
    asked = []

    def profile(activities):
        asked.extend(activities)
        silent = dict.fromkeys(("start", "stop", "export_chrome_trace"), lambda *_: None)
        return SimpleNamespace(**silent)

    kinds = SimpleNamespace(CPU="cpu", NPU="npu")
    package = SimpleNamespace(profiler=SimpleNamespace(ProfilerActivity=kinds, profile=profile))
    monkeypatch.setitem(sys.modules, "torch_npu", package)
    backend = AscendBackend(device=torch.device("cpu"), module=None, name="ascend910b:0")
    recording = recorder(backend.profiler)

    with recording.recording("update", 2):
        work()

    (trace,) = recording.take()
    assert asked == ["cpu", "npu"]
    assert "could not be written: FileNotFoundError" in trace.problem
