"""Connections with time limits that uvicorn lacks: for the head of a request, and for callers that do not read an answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from gavel_py.service.http import Limits


class TimedProtocol(H11Protocol):  # type: ignore[misc]
    """A connection that is closed if a head does not arrive, or an answer is not read, in time."""

    def __init__(self, limits: Limits, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.limits = limits
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._begin(self.limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._end()
        elif self._deadline is None:
            self._begin(self.limits.head_seconds)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._begin(self.limits.body_seconds)

    def resume_writing(self) -> None:
        self._end()
        super().resume_writing()

    def _begin(self, seconds: float) -> None:
        self._end()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _end(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
