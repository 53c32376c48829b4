"""From a valid job to a finished run: checks, folder, model, Ray, driver, report, exit code.

The CLI's `run` calls it. Every fault of the job is reported before a process starts.
"""

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ALL_COMPLETED
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from platform import release

from rljob_api.spec.exit_codes import ExitCode
from rljob_api.spec.terminal_text import printable
from rljob_api.topology.resolved import ResolvedJob, resolve
from rljob_runtime.children.owned_folders import MemoryFolder
from rljob_runtime.children.restricted import landlock_version
from rljob_runtime.dock.address import DockAddress
from rljob_runtime.errors import (
    DeadlineError,
    DockError,
    GuardStop,
    RljobError,
    StorageError,
    WorkerError,
    describe,
)
from rljob_runtime.models.builtin import model_paths
from rljob_runtime.processes.calls import ended_of
from rljob_runtime.processes.dead_devices import dead_devices
from rljob_runtime.processes.device_roles import device_roles
from rljob_runtime.processes.link import Link
from rljob_runtime.processes.placement import Actors, place_workers
from rljob_runtime.processes.session import worker_session
from rljob_runtime.processes.workers import Workers
from rljob_runtime.record.copies import Copies
from rljob_runtime.record.event_types import (
    Event,
    ProgressEvent,
    RunFinishedEvent,
    RunStartedEvent,
    WarningEvent,
)
from rljob_runtime.record.events import EventLog, Subscriber
from rljob_runtime.record.folders import folder_for_all
from rljob_runtime.record.kept_logprobs import logprob_cache_folder
from rljob_runtime.record.remote import EVENTS_NAME
from rljob_runtime.record.run_facts import hints, run_facts
from rljob_runtime.report.display.display import make_display
from rljob_runtime.report.display.report import write_report
from rljob_runtime.report.run_figures import RunFigures
from rljob_runtime.report.tracking.trackers import Trackers, tracked_run
from rljob_runtime.report.watch.runs import LocalRun
from rljob_runtime.run.driver import Driver
from rljob_runtime.run.hangs.dump import Hangs
from rljob_runtime.run.hangs.hang_session import follow, watching_hangs
from rljob_runtime.run.hangs.own_loop import stuck_limit, watching_main_loop
from rljob_runtime.run.hangs.stacks_requests import StacksRequests
from rljob_runtime.run.loop import run_steps
from rljob_runtime.run.row_watch import RowWatch
from rljob_runtime.run.run_place import RunDirectory, prepare_run_directory, reopen_run_directory
from rljob_runtime.run.run_request import (
    RunRequest,
    check_goes_on,
    course_digest,
    dock_directory,
    spec_digest,
)
from rljob_runtime.run.scale_requests import ScaleRequests
from rljob_runtime.run.stages import Interrupted
from rljob_runtime.run.status_server import StatusServer
from rljob_runtime.run.stop_request import StopRequest, stop_signals
from rljob_runtime.run.succession import Succession, Takeover

EXIT_OF = (
    (GuardStop, ExitCode.STOPPED),
    (DeadlineError, ExitCode.HUNG),
    (Exception, ExitCode.FAILED),
)
"""Exit code of an error: that of the first type that it is an instance of."""
WORKER_LOGS = "logs"
"""Folder below the run's, with the output of workers without Ray."""
LAST_NEWS_SECONDS = 15.0
"""How long a driver waits for a request for its last step before it ends."""
LEAVING_SECONDS = 10.0
"""Time for devices to remove second copies."""
READS_FILES = (
    "{}: what a policy writes runs in a process that reads what this job's user reads, as this kernel ({}) "
    "has no Landlock, or was started without"
)
LEAVING = "interrupted: leaving with a checkpoint; Ctrl-C again ends at once"


def run_job(request: RunRequest, link: Link | None = None) -> int:
    """Train. Returns the exit code. Raises ConfigError, FolderInUse or StorageError before anything is
    started. link: to the process above a driver on Ray; None: without Ray."""
    job, succession = resolve(request.job), Succession(link)
    run_directory = _run_directory(request, succession)
    try:
        return _run_in(request, job, run_directory, succession)
    finally:
        run_directory.lock.release()


def _run_in(
    request: RunRequest, job: ResolvedJob, run_directory: RunDirectory, succession: Succession
) -> int:
    link = succession.link
    display = make_display(run_directory.folder)
    log = EventLog(run_directory.folder / EVENTS_NAME)
    log.subscribe(display.on_event)
    stop, earlier = StopRequest(), succession.take_events(log)
    requests = _Requests(
        scale=ScaleRequests(
            job, latest=succession.scale_request(), persist=succession.persist_scale_request
        ),
        stacks=StacksRequests(remote=run_directory.remote),
    )
    if succession.save_requested():
        requests.save.set()
    _subscribe(requests.figures.on_event, log, earlier)
    try:
        with (
            stop_signals(stop, from_above=link is not None),
            _status(request, run_directory, log, requests, succession, earlier),
        ):
            stop.requested = stop.requested or succession.start_listening()
            ending = _earlier_ending(earlier) or _train(
                request, job, run_directory, log, stop, requests, succession
            )
            _write_report(run_directory)
            _copy_records(run_directory)
    finally:
        display.close()
        log.close()
    if ending.message:
        sys.stderr.write(f"{printable(ending.message)}\n")
    return ending.code


@dataclass(frozen=True, slots=True, kw_only=True)
class _Requests:
    """The requests that a run takes, and answers, while it lives."""

    scale: ScaleRequests
    stacks: StacksRequests
    save: threading.Event = field(default_factory=threading.Event)
    figures: RunFigures = field(default_factory=RunFigures)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """The way in which a run ended."""

    status: str
    code: int
    message: str = ""


def _earlier_ending(earlier: Sequence[Event]) -> _Ending | None:
    """Return how the run ended, if the driver before this one reported its end and died then."""
    for event in earlier:
        if isinstance(event, RunFinishedEvent):
            code = event.exit_code or ExitCode.DONE
            return _Ending(status=event.status, code=code, message=event.message)
    return None


def _run_directory(request: RunRequest, succession: Succession) -> RunDirectory:
    """Return the run's directory: that of the driver before this one, if there was one."""
    if succession.run_start and succession.continues_workers:
        return reopen_run_directory(request, succession.run_start.folder)
    run_directory = prepare_run_directory(succession.request(request))
    succession.begin(run_directory.folder, resumed_from=run_directory.step)
    return run_directory


def _train(
    request: RunRequest,
    job: ResolvedJob,
    run_directory: RunDirectory,
    log: EventLog,
    stop: StopRequest,
    requests: _Requests,
    succession: Succession,
) -> _Ending:
    store, run_start = run_directory.store, succession.run_start
    assert run_start is not None, "a run has its folder first"
    copies = Copies(run_directory.remote, store=store, log=log) if run_directory.remote else None
    facts = run_facts(
        job, run_start.resumed_from, folder=request.base_dir, inputs=run_directory.inputs
    )
    if not succession.continues_workers:
        log.write(facts)
        for name in run_directory.changed:
            log.write(
                WarningEvent(message=f"--accept-changes: {name} has changed since the run began")
            )
        if (restricted := job.spec.restricted) and landlock_version() == 0:
            log.write(WarningEvent(message=READS_FILES.format(", ".join(restricted), release())))
        succession.report_restart(log)
    trackers = _start_trackers(job, log, facts)
    driver: Driver | None = None
    ending = _Ending(status="failed", code=ExitCode.FAILED)
    try:
        latest = None if succession.continues_workers else run_directory.checkpoint(log)
        if latest is not None:
            check_goes_on(latest, job)
        if copies:
            copies.start()
        models = {} if succession.continues_workers else _models(request, job, log, stop)
        with (
            dock_directory(request, succession.link) as sockets,
            worker_session(
                job, link=succession.link, logs=run_directory.folder / WORKER_LOGS
            ) as session,
            watching_hangs(
                job,
                host=session.workers.host,
                board=succession.board(session.workers),
                folder=run_directory.folder,
                log=log,
                requests=requests.stacks,
            ) as hangs,
            hangs.at_deadlines(),
        ):
            actors = succession.actors(session.workers) or _make_actors(
                request,
                job,
                session.workers,
                models=models,
                sockets=sockets,
                run=hangs.run,
                link=succession.link,
            )
            watch = RowWatch(actors.dock, requests.figures.set_rows)
            driver = Driver(
                job=job,
                actors=actors,
                log=log,
                store=store,
                shared=request.shared_storage,
                spec_digest=spec_digest(job),
                course_digest=course_digest(job),
                stop=stop,
                until=request.until,
                requests=requests.scale,
                save_requested=requests.save,
                joined=session.joined,
                watch=watch,
                on_timeout=hangs.investigate,
            )
            follow(hangs, job, actors, driver)
            session.joined()
            with watch:
                if latest:
                    with run_directory.disowning_damaged():
                        driver.resume(latest)
                takeover = succession.follow(driver)
                with _ending_when_stuck(driver, log, requests.stacks), _removing_copies(driver):
                    ending = _drive(driver, log, hangs, takeover)
    except Interrupted:
        ending = _Ending(status="interrupted", code=ExitCode.INTERRUPTED)
    except RljobError as error:
        code = next(code for kind, code in EXIT_OF if isinstance(error, kind))
        ending = _Ending(status="failed", code=code, message=describe(error))
    except Exception as error:
        ending = _Ending(status="failed", code=ExitCode.FAILED, message=describe(error))
        if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
            traceback.print_exc()  # a bug: the command line reports only what the file system refused
        raise
    finally:
        if copies:
            ending = _with_copies(ending, copies.finish())
        if trackers:
            trackers.finish(ending.status)
        seconds = time.time() - run_start.started
        log.write(
            _finished(
                request, run_directory, ending, step=driver.step if driver else 0, seconds=seconds
            )
        )
    return ending


def _finished(
    request: RunRequest, run_directory: RunDirectory, ending: _Ending, *, step: int, seconds: float
) -> RunFinishedEvent:
    saved, file = run_directory.store.latest(), request.job_file
    return RunFinishedEvent(
        status=ending.status,
        exit_code=ending.code,
        message=ending.message,
        seconds=seconds,
        step=step,
        checkpoint=str(saved or ""),
        next=hints(ending.status, job_file=file, folder=run_directory.folder, checkpoint=saved),
    )


def _models(
    request: RunRequest, job: ResolvedJob, log: EventLog, stop: StopRequest
) -> dict[str, Path]:
    """Return the model directories by name, created or fetched before workers start."""
    models = model_paths(
        job,
        base_dir=request.base_dir,
        cache_dir=request.cache_dir,
        progress=_progress(log, stop),
    )
    ray_prefix = "" if request.local else "Ray, "
    message = f"starting {ray_prefix}the dock and the device workers"
    log.write(ProgressEvent(message=message))
    return models


def _ending_when_stuck(
    driver: Driver, log: EventLog, stacks: StacksRequests
) -> contextlib.AbstractContextManager[None]:
    """End a driver that makes no progress, in the same way as at any other deadline."""

    def stuck(reason: str) -> None:
        """Report that the driver is stuck."""
        message = f"{reason}; {stacks.ask('driver', reason)}"
        sys.stderr.write(f"{printable(message)}\n")
        log.write(RunFinishedEvent(status="failed", exit_code=ExitCode.HUNG, message=message))

    return watching_main_loop(
        lambda: driver.progress_count,
        stuck,
        seconds=stuck_limit(driver.job.spec.flow.stage_timeout_seconds),
        code=ExitCode.HUNG,
    )


@contextlib.contextmanager
def _removing_copies(driver: Driver) -> Iterator[None]:
    """Remove second copies from the devices' machines when the run has ended. Other machines than this one,
    whose devices no longer answer, leave them to the next run (`owned_folders`)."""
    if driver.job.spec.update.redundancy != "host":
        yield
        return
    # It keeps the folder while all devices of this machine are dead.
    local_folder = MemoryFolder(driver.actors.dock.token)
    try:
        yield
    finally:
        closing = [worker.close_copies() for worker in driver.actors.updating()]
        ended_of(closing, seconds=LEAVING_SECONDS, until=ALL_COMPLETED)
        local_folder.close()


def _start_trackers(job: ResolvedJob, log: EventLog, facts: RunStartedEvent) -> Trackers | None:
    spec = job.spec.tracking
    if spec is None:
        return None
    trackers = Trackers(spec, tracked_run(log.path, facts), log)
    log.subscribe(trackers.on_event)
    return trackers


def _with_copies(ending: _Ending, missing: str) -> _Ending:
    """Return a failed ending if the last checkpoint was not copied to where the job wants it."""
    if not missing:
        return ending
    message = "; ".join(filter(None, (ending.message, missing)))
    if ending.status == "succeeded":
        return _Ending(
            status="failed", code=ExitCode.FAILED, message=f"trained to the end, but {message}"
        )
    return replace(ending, message=message)


def _write_report(run_directory: RunDirectory) -> None:
    """Write the run's report. The run's ending does not depend on it."""
    try:
        write_report(run_directory.folder)
    except Exception as error:
        sys.stderr.write(
            f"the report was not written: {type(error).__name__}: {error}; "
            f"rljob report {run_directory.folder} tries again\n"
        )


def _copy_records(run_directory: RunDirectory) -> None:
    """Copy the run's last records, with its report, to remote storage."""
    if run_directory.remote is None:
        return
    try:
        run_directory.remote.put_records(run_directory.folder)
    except StorageError as error:
        sys.stderr.write(f"{printable(str(error))}\n")


def _drive(driver: Driver, log: EventLog, hangs: Hangs, takeover: Takeover | None) -> _Ending:
    """Train until the end or an interrupt, which leaves a checkpoint of the last complete step."""
    try:
        with hangs.at_deadlines():
            run_steps(driver, takeover)
    except Interrupted:
        log.write(ProgressEvent(message=LEAVING))
        driver.save()
        return _Ending(status="interrupted", code=ExitCode.INTERRUPTED)
    except (WorkerError, DockError) as error:
        if not isinstance(error, DeadlineError) and (dead := dead_devices(driver.actors)):
            raise WorkerError(f"{dead}; {describe(error)}") from error
        raise
    return _Ending(
        status="succeeded",
        code=ExitCode.DONE,
        message=driver.early_stopping.last_words(driver.step, driver.job.spec.steps),
    )


def _make_actors(
    request: RunRequest,
    job: ResolvedJob,
    workers: Workers,
    *,
    models: dict[str, Path],
    sockets: Path,
    run: DockAddress,
    link: Link | None,
) -> Actors:
    devices, shared = len(device_roles(job)), request.shared_storage
    for_all = partial(link.ask, "folder_for_all") if link else folder_for_all
    return place_workers(
        job,
        workers,
        models={name: for_all(path, shared=shared) for name, path in models.items()},
        logprob_dir=logprob_cache_folder(
            job, model=models["policy"], base_dir=request.base_dir, cache_dir=request.cache_dir
        ),
        base_dir=request.base_dir,
        dock_directory=sockets,
        run=run,
        num_threads=max(1, (os.cpu_count() or 1) // devices),
    )


def _progress(log: EventLog, stop: StopRequest) -> Callable[[str], None]:
    def report(message: str) -> None:
        """Write the progress message. Raises Interrupted if the run is to stop."""
        if stop():
            raise Interrupted(message)
        log.write(ProgressEvent(message=message))

    return report


def _subscribe(subscriber: Subscriber, log: EventLog, earlier: Sequence[Event]) -> None:
    """Subscribe to the log, after replaying the events that an earlier driver wrote of the run."""
    for event in earlier:
        subscriber(event)
    log.subscribe(subscriber)


@contextlib.contextmanager
def _status(
    request: RunRequest,
    run_directory: RunDirectory,
    log: EventLog,
    requests: _Requests,
    succession: Succession,
    earlier: Sequence[Event],
) -> Iterator[None]:
    """Serve the run's progress if the request asks for it, until its end has been requested. earlier: events
    that an earlier driver wrote of the run."""
    if request.status is None:
        yield
        return
    port, token = request.status
    spec = request.job.spec
    storage = spec.checkpoint.storage
    server = StatusServer(
        port=port,
        token=token,
        total_steps=spec.steps,
        requests=requests.scale,
        figures=requests.figures,
        run=LocalRun(run_directory.folder),
        stacks=requests.stacks,
        save=requests.save,
        persist_save=succession.persist_save_request,
        copied=storage is not None and storage.remote is not None,
    )
    _subscribe(server.on_event, log, earlier)
    try:
        yield
    finally:
        server.close(wait_seconds=LAST_NEWS_SECONDS)
