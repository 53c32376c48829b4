"""Who came is known by name; who died, never came or shows another token is told apart."""

import json
import multiprocessing
import threading

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.processes.hangs.reporter import start_reporter
from rljob_runtime.processes.hangs.stacks import stacks_text
from rljob_runtime.run.hangs.switchboard import KnownProcess, Switchboard
from rljob_runtime.run.hangs.verdict import judge

FORK = multiprocessing.get_context("fork")


def asked(board: Switchboard, *names: str) -> dict[str, KnownProcess]:
    """Answers once these have come; the test's own deadline ends it otherwise."""
    while not set(names) <= (found := board.ask(seconds=5.0)).keys():
        pass
    return found


def test_a_process_whose_main_thread_is_blocked_answers(
    board: Switchboard, run: DockAddress
) -> None:
    start_reporter("device-0", run, lambda: {"fact": 7})

    heard = asked(board, "device-0")["device-0"]

    assert heard.report is not None
    assert heard.report["fact"] == 7
    assert "thread MainThread" in heard.report["stacks"].splitlines()[0]
    assert "asked (" in heard.report["stacks"]


def test_facts_that_fail_cost_no_stacks(board: Switchboard, run: DockAddress) -> None:
    start_reporter("device-0", run, lambda: {"fact": 1 // 0})

    heard = asked(board, "device-0")["device-0"]

    assert heard.report is not None
    assert heard.report["facts_failed"].startswith("ZeroDivisionError")
    assert "MainThread" in heard.report["stacks"]


def test_a_process_that_died_and_one_that_never_came_are_missing(
    board: Switchboard, run: DockAddress
) -> None:
    def live() -> None:
        start_reporter("device-0", run)
        threading.Event().wait()

    process = FORK.Process(target=live, daemon=True)
    process.start()
    asked(board, "device-0")
    process.kill()
    process.join()
    while (heard := board.ask(seconds=1.0))["device-0"].gone_s is None:
        pass

    verdict = judge(heard, ["device-0", "device-1"], {}, time_s=heard["device-0"].gone_s + 3)

    why = {missing.process: missing.why for missing in verdict.missing}
    assert why["device-0"].startswith("is gone since")
    assert why["device-0"].endswith("(3 s)")
    assert why["device-1"].startswith("has not started")


def test_a_process_with_another_token_is_not_heard(board: Switchboard, run: DockAddress) -> None:
    stranger = DockAddress(
        token="guessed", warehouses=(), controllers={}, switchboard=board.address
    )
    start_reporter("stranger", stranger)
    start_reporter("device-0", run)

    assert set(asked(board, "device-0")) == {"device-0"}


def test_stacks_have_places_and_names_and_no_values() -> None:
    secret, entered, leave = "value-of-a-local", threading.Event(), threading.Event()

    def holds_a_secret(told: str) -> None:
        entered.set()
        leave.wait()

    thread = threading.Thread(target=holds_a_secret, args=(secret,), name="holder")
    thread.start()
    entered.wait()
    text = stacks_text()
    leave.set()
    thread.join()

    assert "thread holder" in text
    assert "holds_a_secret (" in text
    assert secret not in text


def test_a_deep_stack_is_cut_in_its_middle() -> None:
    def deeper(left: int) -> str:
        return deeper(left - 1) if left else stacks_text()

    main = deeper(300).split("\n\n")[0]

    assert len(main.splitlines()) < 100
    assert "frames" in main
    assert json.dumps(main)
