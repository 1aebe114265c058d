"""Arrays of NumPy and of other frameworks as graphc's tensors, and back; memory is shared where it can be."""

import numpy as np

from . import errors
from ._graphc import Tensor

# graphc's names of the element types, by NumPy's; those from bfloat16 on are of the package ml_dtypes.
OF_NUMPY = {
    "float32": "f32",
    "float16": "f16",
    "float64": "f64",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "bool",
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8e4m3fn",
    "float8_e4m3fnuz": "f8e4m3fnuz",
    "float8_e5m2": "f8e5m2",
    "float8_e5m2fnuz": "f8e5m2fnuz",
    "int4": "i4",
    "uint4": "u4",
}
TO_NUMPY = {name: numpy for numpy, name in OF_NUMPY.items()}

# Types that NumPy has itself.
_PLAIN = {"f32", "f16", "f64", "i64", "i32", "i16", "i8", "u8", "bool"}

_CPU, _CUDA, _ROCM = 1, 2, 10


def numpy_dtype(name):
    """The NumPy type of an element type; those that NumPy lacks are of ml_dtypes."""
    if name not in TO_NUMPY:
        raise errors.ArgumentError(f"there is no element type {name!r}; known: {', '.join(TO_NUMPY)}")
    if name in _PLAIN:
        return np.dtype(TO_NUMPY[name])
    try:
        import ml_dtypes
    except ImportError:
        raise errors.UnsupportedError(
            f"NumPy has no type for {name}: install ml_dtypes, or hand the tensor over by DLPack"
        ) from None
    return np.dtype(getattr(ml_dtypes, TO_NUMPY[name]))


def as_tensor(value, dtype=None, session=None, name=None):
    """Makes a tensor of a graphc.Tensor, a NumPy array, what has __dlpack__ or __array__, or numbers and lists of them.

    Numbers and lists have the element type ``dtype``; arrays keep their own. ``name`` is the input's, for errors.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray):
        return _of_array(value, name)
    if isinstance(value, np.generic):
        return _of_array(np.asarray(value), name)
    if hasattr(value, "__dlpack__"):
        return _of_dlpack(value, session)
    if hasattr(value, "__array__"):
        return _of_array(np.asarray(value), name)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise errors.InputError(f"{_input(name)}{error}") from None
    wanted = None if dtype is None else numpy_dtype(dtype)
    if wanted is not None and array.dtype.kind in "biuf" and array.dtype != wanted:
        array = array.astype(wanted)
    return _of_array(array, name)


def _input(name):
    return "" if name is None else f"input {name!r}: "


def _of_array(array, name):
    dtype = OF_NUMPY.get(array.dtype.name)
    if dtype is None:
        known = ", ".join(OF_NUMPY)
        raise errors.InputError(
            f"{_input(name)}an array of {array.dtype} is none that graphc takes; convert it to one of {known}"
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.c_contiguous:
        array = np.array(array, order="C")
    shape = array.shape
    if dtype in ("i4", "u4"):
        array = _pack(array)
    address = array.__array_interface__["data"][0]
    return Tensor.from_memory(address, array.nbytes, dtype, shape, array)


def _pack(array):
    """Two elements in a byte, the first in the low half."""
    halves = array.astype(np.int8).view(np.uint8).reshape(-1) & 15
    if halves.size % 2:
        halves = np.append(halves, np.uint8(0))
    return halves[0::2] | (halves[1::2] << 4)


def _of_dlpack(value, session):
    try:
        capsule = value.__dlpack__(max_version=(1, 0))
    except TypeError:
        capsule = value.__dlpack__()
    return Tensor.from_capsule(capsule, session)


class _Memory:
    """A tensor's bytes as NumPy asks for them; arrays of it keep the tensor."""

    def __init__(self, tensor, shape, typestr, writable):
        self.tensor = tensor
        data = (tensor.address(), not writable)
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": typestr, "data": data}


def to_numpy(tensor, writable=False):
    """Returns a tensor's values as an array that shares them; 4-bit types take a byte each in NumPy, and are copied."""
    dtype = numpy_dtype(tensor.dtype)
    shape = tuple(tensor.shape)
    if tensor.nbytes == 0:
        return np.empty(shape, dtype)
    if tensor.device != "cpu":
        tensor = tensor.host()
    if tensor.dtype in ("i4", "u4"):
        return _unpack(tensor, shape, dtype)
    if tensor.dtype in _PLAIN:
        return np.asarray(_Memory(tensor, shape, dtype.str, writable))
    raw = f"<u{dtype.itemsize}" if dtype.itemsize > 1 else "|u1"
    return np.asarray(_Memory(tensor, shape, raw, writable)).view(dtype)


def _unpack(tensor, shape, dtype):
    packed = np.asarray(_Memory(tensor, (tensor.nbytes,), "|u1", False))
    halves = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)[: int(np.prod(shape))].astype(np.int8)
    if tensor.dtype == "i4":
        halves = np.where(halves > 7, halves - 16, halves).astype(np.int8)
    return halves.reshape(shape).astype(dtype)


def as_array(tensor, dtype, copy):
    """What NumPy asks a tensor for."""
    array = to_numpy(tensor)
    if dtype is not None and array.dtype != np.dtype(dtype):
        if copy is False:
            raise ValueError(f"a tensor of {tensor.dtype} is no array of {np.dtype(dtype)} without a copy")
        return array.astype(dtype)
    return array.copy() if copy else array


def dlpack_device(tensor):
    """DLPack's type and number of a tensor's device."""
    kind, _, number = tensor.device.partition(":")
    kinds = {"cpu": _CPU, "hip": _ROCM, "cuda": _CUDA}
    if kind not in kinds or "," in number:
        raise errors.UnsupportedError(f"a tensor on {tensor.device} has no one address; Tensor.host() copies it")
    return kinds[kind], int(number or 0)


def to_dlpack(tensor, stream, max_version, dl_device, copy):
    """What another framework asks a tensor for. The values are waited for, so that any stream may read them."""
    if dl_device is not None and tuple(dl_device) != dlpack_device(tensor):
        if tuple(dl_device) != (_CPU, 0) or copy is False:
            raise BufferError(f"a tensor on {tensor.device} does not go to DLPack's device {tuple(dl_device)}")
        tensor, copy = tensor.host(), False
    if copy:
        tensor = _of_array(to_numpy(tensor).copy(), None)
    versioned = max_version is not None and max_version[0] >= 1
    return tensor.to_capsule(versioned, False)
