"""From a valid job to a finished run: checks, folder, model, Ray, driver, report, exit code.

Called by the CLI's `run`. Everything that the job can get wrong is said before a process starts.
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
from rljob_runtime.processes.placement import Actors, place
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
from rljob_runtime.run.hangs.own_loop import own_limit, watching_own_loop
from rljob_runtime.run.hangs.stacks_requests import StacksRequests
from rljob_runtime.run.loop import run_steps
from rljob_runtime.run.row_watch import RowWatch
from rljob_runtime.run.run_place import RunPlace, run_place, same_place
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
from rljob_runtime.run.succession import Succession, Taken

EXIT_OF = (
    (GuardStop, ExitCode.STOPPED),
    (DeadlineError, ExitCode.HUNG),
    (Exception, ExitCode.FAILED),
)
"""Of an error: the first that it is an instance of."""
WORKER_LOGS = "logs"
"""In the run's folder: what workers without Ray say."""
LAST_NEWS_SECONDS = 15.0
"""How long a driver waits for somebody to ask for its last step before it ends."""
LEAVING_SECONDS = 10.0
"""For devices to remove second copies."""
READS_FILES = (
    "{}: what a policy writes runs in a process that reads what this job's user reads, as this kernel ({}) "
    "has no Landlock, or was started without"
)
LEAVING = "interrupted: leaving with a checkpoint; Ctrl-C again ends at once"


def run_job(request: RunRequest, link: Link | None = None) -> int:
    """Train. Returns the exit code; raises ConfigError, FolderInUse, StorageError before anything was
    started. link: to the process above a driver on Ray; None: without Ray."""
    job, succession = resolve(request.job), Succession(link)
    place = _place(request, succession)
    try:
        return _run_there(request, job, place, succession)
    finally:
        place.lock.release()


def _run_there(
    request: RunRequest, job: ResolvedJob, place: RunPlace, succession: Succession
) -> int:
    link = succession.link
    display = make_display(place.folder)
    log = EventLog(place.folder / EVENTS_NAME)
    log.subscribe(display.on_event)
    stop, earlier = StopRequest(), succession.take_events(log)
    requests = _Requests(
        scale=ScaleRequests(job, asked=succession.asked(), keep=succession.keep_asked),
        stacks=StacksRequests(remote=place.remote),
    )
    if succession.save_asked():
        requests.save.set()
    _subscribe(requests.figures.on_event, log, earlier)
    try:
        with (
            stop_signals(stop, from_above=link is not None),
            _status(request, place, log, requests, succession, earlier),
        ):
            stop.asked = stop.asked or succession.stops()
            ending = _told(earlier) or _run(request, job, place, log, stop, requests, succession)
            _write_report(place)
            _copy_records(place)
    finally:
        display.close()
        log.close()
    if ending.message:
        sys.stderr.write(f"{printable(ending.message)}\n")
    return ending.code


@dataclass(frozen=True, slots=True, kw_only=True)
class _Requests:
    """What a run is asked for, or about, while it lives."""

    scale: ScaleRequests
    stacks: StacksRequests
    save: threading.Event = field(default_factory=threading.Event)
    figures: RunFigures = field(default_factory=RunFigures)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """How a run ended."""

    status: str
    code: int
    message: str = ""


def _told(earlier: Sequence[Event]) -> _Ending | None:
    """How the run ended, where the driver before this one has told it and died then."""
    for event in earlier:
        if isinstance(event, RunFinishedEvent):
            code = event.exit_code or ExitCode.DONE
            return _Ending(status=event.status, code=code, message=event.message)
    return None


def _place(request: RunRequest, succession: Succession) -> RunPlace:
    """Where the run lies: that of the driver before this one, where there was one."""
    if succession.begun and succession.joins:
        return same_place(request, succession.begun.folder)
    place = run_place(succession.request(request))
    succession.begin(place.folder, resumed_from=place.step)
    return place


def _run(
    request: RunRequest,
    job: ResolvedJob,
    place: RunPlace,
    log: EventLog,
    stop: StopRequest,
    requests: _Requests,
    succession: Succession,
) -> _Ending:
    store, begun = place.store, succession.begun
    assert begun is not None, "a run has its folder first"
    copies = Copies(place.remote, store=store, log=log) if place.remote else None
    facts = run_facts(job, begun.resumed_from, folder=request.base_dir, inputs=place.inputs)
    if not succession.joins:
        log.write(facts)
        for name in place.changed:
            log.write(
                WarningEvent(message=f"--accept-changes: {name} has changed since the run began")
            )
        if (restricted := job.spec.restricted) and landlock_version() == 0:
            log.write(WarningEvent(message=READS_FILES.format(", ".join(restricted), release())))
        succession.tell_beginning(log)
    trackers = _start_trackers(job, log, facts)
    driver: Driver | None = None
    ending = _Ending(status="failed", code=ExitCode.FAILED)
    try:
        latest = None if succession.joins else place.checkpoint(log)
        if latest is not None:
            check_goes_on(latest, job)
        if copies:
            copies.start()
        models = {} if succession.joins else _models(request, job, log, stop)
        with (
            dock_directory(request, succession.link) as sockets,
            worker_session(job, link=succession.link, logs=place.folder / WORKER_LOGS) as session,
            watching_hangs(
                job,
                host=session.workers.host,
                board=succession.board(session.workers),
                folder=place.folder,
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
                asked_to_save=requests.save,
                joined=session.joined,
                watch=watch,
                hung=hangs.look,
            )
            follow(hangs, job, actors, driver)
            session.joined()
            with watch:
                if latest:
                    with place.damage_known():
                        driver.resume(latest)
                taken = succession.follow(driver)
                with _not_stuck(driver, log, requests.stacks), _no_copies_left(driver):
                    ending = _drive(driver, log, hangs, taken)
    except Interrupted:
        ending = _Ending(status="interrupted", code=ExitCode.INTERRUPTED)
    except RljobError as error:
        code = next(code for kind, code in EXIT_OF if isinstance(error, kind))
        ending = _Ending(status="failed", code=code, message=describe(error))
    except Exception as error:
        ending = _Ending(status="failed", code=ExitCode.FAILED, message=describe(error))
        if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
            traceback.print_exc()  # a fault of ours: the command line says what the file system refused alone
        raise
    finally:
        if copies:
            ending = _with_copies(ending, copies.finish())
        if trackers:
            trackers.finish(ending.status)
        seconds = time.time() - begun.started
        log.write(
            _finished(request, place, ending, step=driver.step if driver else 0, seconds=seconds)
        )
    return ending


def _finished(
    request: RunRequest, place: RunPlace, ending: _Ending, *, step: int, seconds: float
) -> RunFinishedEvent:
    saved, file = place.store.latest(), request.job_file
    return RunFinishedEvent(
        status=ending.status,
        exit_code=ending.code,
        message=ending.message,
        seconds=seconds,
        step=step,
        checkpoint=str(saved or ""),
        next=hints(ending.status, job_file=file, folder=place.folder, checkpoint=saved),
    )


def _models(
    request: RunRequest, job: ResolvedJob, log: EventLog, stop: StopRequest
) -> dict[str, Path]:
    """Directories by name, made or fetched before workers are started."""
    models = model_paths(
        job,
        base_dir=request.base_dir,
        cache_dir=request.cache_dir,
        progress=_progress(log, stop),
    )
    beginning = "" if request.local else "Ray, "
    doing = f"starting {beginning}the dock and the device workers"
    log.write(ProgressEvent(message=doing))
    return models


def _not_stuck(
    driver: Driver, log: EventLog, stacks: StacksRequests
) -> contextlib.AbstractContextManager[None]:
    """A driver that does not come further by itself ends as at any other deadline."""

    def stuck(why: str) -> None:
        message = f"{why}; {stacks.ask('driver', why)}"
        sys.stderr.write(f"{printable(message)}\n")
        log.write(RunFinishedEvent(status="failed", exit_code=ExitCode.HUNG, message=message))

    return watching_own_loop(
        lambda: driver.moves,
        stuck,
        seconds=own_limit(driver.job.spec.flow.stage_timeout_seconds),
        code=ExitCode.HUNG,
    )


@contextlib.contextmanager
def _no_copies_left(driver: Driver) -> Iterator[None]:
    """The devices' machines keep no second copies when the run has ended; other machines than this one, whose
    devices cannot be asked any more, leave them to the next run (`owned_folders`)."""
    if driver.job.spec.update.redundancy != "host":
        yield
        return
    # It stays while all devices of this machine are dead.
    here = MemoryFolder(driver.actors.dock.token)
    try:
        yield
    finally:
        asked = [worker.close_copies() for worker in driver.actors.updating()]
        ended_of(asked, seconds=LEAVING_SECONDS, until=ALL_COMPLETED)
        here.close()


def _start_trackers(job: ResolvedJob, log: EventLog, facts: RunStartedEvent) -> Trackers | None:
    spec = job.spec.tracking
    if spec is None:
        return None
    trackers = Trackers(spec, tracked_run(log.path, facts), log)
    log.subscribe(trackers.on_event)
    return trackers


def _with_copies(ending: _Ending, missing: str) -> _Ending:
    """A run whose last checkpoint is not where the job wants it has not succeeded."""
    if not missing:
        return ending
    message = "; ".join(filter(None, (ending.message, missing)))
    if ending.status == "succeeded":
        return _Ending(
            status="failed", code=ExitCode.FAILED, message=f"trained to the end, but {message}"
        )
    return replace(ending, message=message)


def _write_report(place: RunPlace) -> None:
    """The run has ended as it has, with a report or without."""
    try:
        write_report(place.folder)
    except Exception as error:
        sys.stderr.write(
            f"the report was not written: {type(error).__name__}: {error}; "
            f"rljob report {place.folder} tries again\n"
        )


def _copy_records(place: RunPlace) -> None:
    """The run's last words, its report among them."""
    if place.remote is None:
        return
    try:
        place.remote.put_records(place.folder)
    except StorageError as error:
        sys.stderr.write(f"{printable(str(error))}\n")


def _drive(driver: Driver, log: EventLog, hangs: Hangs, taken: Taken | None) -> _Ending:
    """Train until the end or an interrupt, which leaves a checkpoint of the last whole step."""
    try:
        with hangs.at_deadlines():
            run_steps(driver, taken)
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
    return place(
        job,
        workers,
        models={name: for_all(path, shared=shared) for name, path in models.items()},
        kept=logprob_cache_folder(
            job, model=models["policy"], base_dir=request.base_dir, cache_dir=request.cache_dir
        ),
        base_dir=request.base_dir,
        dock_directory=sockets,
        run=run,
        num_threads=max(1, (os.cpu_count() or 1) // devices),
    )


def _progress(log: EventLog, stop: StopRequest) -> Callable[[str], None]:
    def report(message: str) -> None:
        if stop():
            raise Interrupted(message)
        log.write(ProgressEvent(message=message))

    return report


def _subscribe(subscriber: Subscriber, log: EventLog, earlier: Sequence[Event]) -> None:
    """To the log, and to what another driver has told of the run."""
    for event in earlier:
        subscriber(event)
    log.subscribe(subscriber)


@contextlib.contextmanager
def _status(
    request: RunRequest,
    place: RunPlace,
    log: EventLog,
    requests: _Requests,
    succession: Succession,
    earlier: Sequence[Event],
) -> Iterator[None]:
    """Serve the run's progress where the request says so, until its end has been told. earlier: what another
    driver told of the run."""
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
        run=LocalRun(place.folder),
        stacks=requests.stacks,
        save=requests.save,
        keep_save=succession.keep_save,
        copied=storage is not None and storage.remote is not None,
    )
    _subscribe(server.on_event, log, earlier)
    try:
        yield
    finally:
        server.close(wait_seconds=LAST_NEWS_SECONDS)
