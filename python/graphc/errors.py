"""What graphc raises. All of it is a graphc.Error; what the caller can mend is a graphc.UserError."""

import builtins


class Error(Exception):
    """Any failure of graphc."""


class UserError(Error):
    """A mistake in what was given: an argument, an option, a file, a model, inputs, or what is installed."""


class ArgumentError(UserError, builtins.TypeError, builtins.ValueError):
    """An argument is of the wrong kind or out of range."""


class OptionError(UserError, builtins.ValueError):
    """An option is unknown, or does not take its value."""


class FileError(UserError, builtins.OSError):
    """A file cannot be read or written."""


class ModelError(UserError, builtins.ValueError):
    """A model or an artifact is damaged, or asks for what graphc does not have."""


class InputError(UserError, builtins.ValueError):
    """Inputs do not fit the model: a name, an element type, a shape, or an index in the data."""


class NotAvailableError(UserError, builtins.RuntimeError):
    """A device, a library, a compiler or the code for a target is not there."""


class UnsupportedError(Error, builtins.NotImplementedError):
    """What is asked for is not supported."""


class OutOfMemoryError(Error, builtins.MemoryError):
    """There is too little memory."""


class TimeoutError(Error, builtins.TimeoutError):
    """A device was waited for longer than the option "timeout" allows."""


class DeviceError(Error, builtins.RuntimeError):
    """A device failed, or went away."""


class InternalError(Error, builtins.RuntimeError):
    """A bug of graphc."""
