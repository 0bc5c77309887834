# The weights of fastcore._kernels, which includes this file.

def packed_bytes(int out_features, int in_features, str dtype) -> int:
    """Bytes of a packed map [out_features, in_features]."""
    return fc_packed_bytes(out_features, in_features, <fc_dtype><int>DTYPES[dtype])


cdef class PackedLinear:
    """A linear map [out_features, in_features] in panels of 16 rows (layout: csrc/fastcore.h), in memory of the arena; or over
    `panels`, uint8 [packed_bytes] from a cache line on, which are only read."""

    cdef readonly str dtype
    cdef readonly int out_features, in_features
    cdef readonly object panels
    cdef const uint8_t *_data
    cdef bint _ours

    def __cinit__(self, int out_features, int in_features, str dtype, arena=None, panels=None):
        if dtype not in DTYPES:
            raise ValueError(f"weight dtype {dtype!r}; known: {', '.join(DTYPES)}")
        if not (0 < out_features <= 1 << 24 and 0 < in_features <= 1 << 24):
            raise ValueError(f"linear map [{out_features}, {in_features}]: sizes must be from 1 to 2^24")
        self.dtype, self.out_features, self.in_features = dtype, out_features, in_features
        cdef size_t nbytes = fc_packed_bytes(out_features, in_features, DTYPES[dtype])
        self._ours = panels is None
        self.panels = (arena or Arena()).zeros(nbytes) if panels is None else panels
        if self.panels.dtype != np.uint8 or self.panels.shape != (nbytes,) or not self.panels.flags.c_contiguous:
            raise ValueError(f"panels {self.panels.dtype} {self.panels.shape}: expected uint8 [{nbytes}]")
        if self.panels.ctypes.data % _ALIGNMENT:
            raise ValueError(f"panels at {self.panels.ctypes.data}: expected a multiple of {_ALIGNMENT}")
        self._data = <const uint8_t *><uintptr_t>self.panels.ctypes.data

    @property
    def nbytes(self) -> int:
        return self.panels.nbytes

    def pack(self, src: np.ndarray, str src_dtype, int first_row=0, int group_stride=16, int num_threads=1) -> None:
        """Put src [rows, in_features] (elements of src_dtype, bf16 as uint16; of int8 and int4 an element is a group of 32) in from
        first_row on; with group_stride 32 its groups of 16 rows leave room for another map's between them.

        Elements of the map's own dtype stay as they are; ValueError where an integer is beyond its range."""
        if not self._ours:
            raise ValueError("this map lies in memory that is only read")
        if src_dtype not in STORED_AS or src.dtype != STORED_AS[src_dtype]:
            raise ValueError(f"source of dtype {src_dtype!r} stored as {src.dtype}")
        cdef int k = self.in_features, to = DTYPES[self.dtype], of = DTYPES[src_dtype], rows, beyond
        cdef int elements = (k + fc_format_of(of).block_k - 1) // fc_format_of(of).block_k
        if src.ndim != 2 or src.shape[1] != elements or not src.flags.c_contiguous:
            raise ValueError(f"source of shape {src.shape}: expected contiguous rows of {elements}")
        if group_stride < 16 or group_stride % 16 or first_row < 0 or (group_stride > 16 and first_row % 16):
            raise ValueError(f"first_row {first_row} with group_stride {group_stride}")
        _check_threads(num_threads)
        rows = src.shape[0]
        cdef int64_t last = <int64_t>first_row + (rows - 1) // 16 * <int64_t>group_stride + (rows - 1) % 16
        if rows == 0 or last >= (self.out_features + 15) // 16 * 16:
            raise ValueError(f"{rows} rows from row {first_row} do not fit {self.out_features} rows")
        cdef const void *data = <const void *><uintptr_t>src.ctypes.data
        with nogil:
            beyond = fc_pack_rows(<void *>self._data, <fc_dtype>to, k, data, <fc_dtype>of, rows, first_row, group_stride,
                                  num_threads)
        if beyond:
            raise ValueError("an integer is -128, and int8 maps hold those from -127 to 127")

    def row(self, int index) -> np.ndarray:
        """Row `index` as f32 [in_features]."""
        if not 0 <= index < (self.out_features + 15) // 16 * 16:
            raise IndexError(index)
        out = np.empty(self.in_features, np.float32)
        cdef float[::1] o = out
        fc_unpack_row(self._data, <fc_dtype><int>DTYPES[self.dtype], self.in_features, index, &o[0])
        return out
