"""A small API server for the command line's tests: real HTTP and websockets, answers as told."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

from aiohttp import web

JOBS = "/apis/rljob.io/v1alpha1/namespaces/research/rljobs"
CORE = "/api/v1/namespaces/research"


def refusal(code: int, message: str) -> web.Response:
    """A refusal as the API server words it."""
    status = {"kind": "Status", "status": "Failure", "code": code, "message": message}
    return web.json_response(status, status=code)


class KubeServer:
    """Serves what its attributes hold. watches: the changes of each watch in turn, then silence.

    logs: by pod, the pieces of each answer in turn. files: of the head, by path. folders: of the head, by
    path, where commands run for real. refusals: by path of the URL, in front of everything else.
    requests: (path, query) as they came. commands: of shells.
    """

    def __init__(self) -> None:
        self.jobs: list[Any] = []
        self.pods: list[Any] = []
        self.events: list[Any] = []
        self.watches: list[list[Any]] = []
        self.logs: dict[str, list[list[str]]] = {}
        self.files: dict[str, bytes] = {}
        self.folders: dict[str, Path] = {}
        self.says: dict[str, str] = {}
        self.refusals: dict[str, web.Response] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.commands: list[list[str]] = []
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._runner = web.AppRunner(self._app(), shutdown_timeout=0.1)

    def start(self) -> None:
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._do(self._runner.setup())
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        self._do(site.start())
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def stop(self) -> None:
        self._do(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _do(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._noted])
        app.router.add_get(JOBS, self._list)
        app.router.add_get(f"{JOBS}/{{name}}", self._get)
        app.router.add_get(f"{CORE}/pods", self._pods)
        app.router.add_get(f"{CORE}/events", self._events)
        app.router.add_get(f"{CORE}/pods/{{pod}}/log", self._log)
        app.router.add_get(f"{CORE}/pods/{{pod}}/exec", self._exec)
        return app

    @web.middleware
    async def _noted(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append((request.path, dict(request.query)))
        if request.headers.get("Authorization") != "Bearer the-token":
            return refusal(401, "Unauthorized")
        if request.path in self.refusals:
            return self.refusals[request.path]
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _pods(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": self.pods})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": self.events})

    async def _get(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        found = [job for job in self.jobs if job["metadata"]["name"] == name]
        return web.json_response(found[-1]) if found else refusal(404, f"{name} not found")

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch", "").lower() == "true":
            changes = self.watches.pop(0) if self.watches else []
            return await self._stream(request, [json.dumps(change) + "\n" for change in changes])
        return web.json_response({"kind": "RLJobList", "items": self.jobs})

    async def _log(self, request: web.Request) -> web.StreamResponse:
        answers = self.logs[request.match_info["pod"]]
        lines = answers.pop(0) if len(answers) > 1 else answers[0]
        silent = request.query.get("follow", "").lower() == "true"
        return await self._stream(request, [f"{line}\n" for line in lines], silent=silent)

    async def _stream(
        self, request: web.Request, pieces: list[str], *, silent: bool = False
    ) -> web.StreamResponse:
        answer = web.StreamResponse()
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        for piece in pieces:
            await answer.write(piece.encode())
        if silent:
            await asyncio.sleep(30)
        return answer

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        """A shell that prints the file that its command names, or what its command says."""
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        command = request.query.getall("command")
        self.commands.append(command)
        path, limit = command[-2:]
        status: dict[str, Any] = {"status": "Success"}
        here = [own for own in self.folders if any(word.startswith(own) for word in command)]
        if (said := self.says.get(" ".join(command))) is not None:
            await socket.send_bytes(b"\x01" + said.encode())
        elif here:
            status = await self._run(socket, command, here[0])
        elif path in self.files:
            content = self.files[path][: int(limit)]
            for start in range(0, len(content), 4096):
                await socket.send_bytes(b"\x01" + content[start : start + 4096])
        else:
            status = _failure(44)
        await socket.send_bytes(b"\x03" + json.dumps(status).encode())
        await socket.close()
        return socket

    async def _run(
        self, socket: web.WebSocketResponse, command: list[str], folder: str
    ) -> dict[str, Any]:
        """Run the command on this machine's folder; returns what the API server says of its end."""
        own = [word.replace(folder, str(self.folders[folder])) for word in command]
        process = await asyncio.create_subprocess_exec(
            *own, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        output, complaint = await process.communicate()
        for channel, said in ((b"\x01", output), (b"\x02", complaint)):
            for start in range(0, len(said), 4096):
                await socket.send_bytes(channel + said[start : start + 4096])
        return _failure(process.returncode) if process.returncode else {"status": "Success"}


def _failure(code: int) -> dict[str, Any]:
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return {"status": "Failure", "message": f"exit code {code}", "details": {"causes": causes}}
