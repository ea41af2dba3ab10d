"""Every refusal of the engine, with the HTTP status it becomes.

Refused                     400   what was refused, the value, what is allowed, what to do
├── ContextOverflow         400   code context_length_exceeded
├── Unauthorized            401
├── NotFound                404
├── TooBig                  413
├── Busy                    503
└── Unavailable             503
CheckpointError             —     a file the engine will not load; one line that names the fault
SetupError                  —     wrong option or machine; said at start, before weights are read
"""

from __future__ import annotations


class Refused(Exception):
    """A request that is not served. `param` and `code` are OpenAI's error fields."""

    status = 400
    type = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param, self.code = message, param, code


class ContextOverflow(Refused):
    """A prompt (plus its reply) that the window cannot hold."""

    def __init__(self, message: str, *, param: str | None = "messages") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class Unauthorized(Refused):
    status = 401
    type = "authentication_error"


class NotFound(Refused):
    status = 404
    type = "not_found_error"


class TooBig(Refused):
    status = 413


class Busy(Refused):
    status = 503
    type = "server_error"


class Unavailable(Refused):
    status = 503
    type = "server_error"


class CheckpointError(Exception):
    """A checkpoint that is refused; the message names the file, the key or tensor, the value, and what is allowed."""


class SetupError(Exception):
    """An option or a machine that cannot work; the message says what would."""
