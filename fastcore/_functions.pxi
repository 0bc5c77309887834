# The functions on arrays of fastcore._kernels, which includes this file.

def exp(const float[::1] x not None) -> np.ndarray:
    """e^x of an f32 vector, by the polynomial that every kernel uses."""
    out = np.empty(x.shape[0], np.float32)
    cdef float[::1] o = out
    if x.shape[0]:
        with nogil:
            fc_exp(&x[0], &o[0], x.shape[0])
    return out


def silu(const float[::1] x not None) -> np.ndarray:
    """x / (1 + e^-x) of an f32 vector."""
    out = np.empty(x.shape[0], np.float32)
    cdef float[::1] o = out
    if x.shape[0]:
        with nogil:
            fc_silu(&x[0], &o[0], x.shape[0])
    return out


def softplus(const float[::1] x not None) -> np.ndarray:
    """ln(1 + e^x) of an f32 vector."""
    out = np.empty(x.shape[0], np.float32)
    cdef float[::1] o = out
    if x.shape[0]:
        with nogil:
            fc_softplus(&x[0], &o[0], x.shape[0])
    return out


def argmax(const float[::1] x not None) -> int:
    """Index of the largest value, the lowest such index; -1 if a value is NaN or infinite."""
    if x.shape[0] == 0:
        raise ValueError("argmax of an empty vector")
    cdef int64_t index
    with nogil:
        index = fc_argmax(&x[0], x.shape[0])
    return index


def softmax_weights(const float[::1] x not None, float shift, float scale, float[::1] weights not None,
                    double[::1] sums not None) -> None:
    """weights[i] = e^((x[i] - shift) * scale), 0 below e^-87; sums [ceil(n / WEIGHT_BLOCK)] of WEIGHT_BLOCK at a time."""
    cdef ptrdiff_t n = x.shape[0]
    if weights.shape[0] < n or sums.shape[0] != (n + FC_WEIGHT_BLOCK - 1) // FC_WEIGHT_BLOCK:
        raise ValueError(f"{n} values into {weights.shape[0]} weights and {sums.shape[0]} sums")
    if n:
        with nogil:
            fc_softmax_weights(&x[0], n, shift, scale, &weights[0], &sums[0])


def sum_exp(const float[::1] x not None, float shift, float scale) -> float:
    """Sum of e^((x - shift) * scale)."""
    cdef double total = 0.0
    if x.shape[0]:
        with nogil:
            total = fc_sum_exp(&x[0], x.shape[0], shift, scale)
    return total


def mask_logits(const float[::1] logits not None, const uint32_t[::1] allowed not None, float[::1] out not None) -> None:
    """out[i] = logits[i] where bit i % 32 of allowed[i // 32] is set, else -inf; allowed: u32 [ceil(n / 32)]."""
    cdef ptrdiff_t n = logits.shape[0]
    if out.shape[0] != n or allowed.shape[0] != (n + 31) // 32:
        raise ValueError(f"{n} logits into {out.shape[0]} by {allowed.shape[0]} words")
    if n:
        with nogil:
            fc_mask_logits(&logits[0], &allowed[0], n, &out[0])


def viterbi(const float[:, ::1] logits not None, const float[:, ::1] transition_scores not None,
            const float[::1] start_scores not None, const float[::1] end_scores not None) -> np.ndarray:
    """The best path i32 [num_tokens] through logits [num_tokens, num_labels]: fc_viterbi in csrc/fastcore.h."""
    cdef Py_ssize_t tokens = logits.shape[0], labels = logits.shape[1]
    if not 0 < labels <= FC_MAX_LABELS or tokens > _MAX_POSITIONS:
        raise ValueError(f"{tokens} tokens and {labels} labels; expected from 1 to {FC_MAX_LABELS} labels")
    if (transition_scores.shape[0] != labels or transition_scores.shape[1] != labels or start_scores.shape[0] != labels
            or end_scores.shape[0] != labels):
        raise ValueError(f"scores [{transition_scores.shape[0]}, {transition_scores.shape[1]}], [{start_scores.shape[0]}] and "
                         f"[{end_scores.shape[0]}] for {labels} labels")
    for scores in np.asarray(transition_scores), np.asarray(start_scores), np.asarray(end_scores):
        if not (scores < np.inf).all():
            raise ValueError("transition, start and end scores must be finite, or -inf where forbidden")
    if not np.isfinite(logits).all():
        raise NonFiniteError("the label logits hold NaN or infinity; expected finite numbers")
    path = np.empty(tokens, np.int32)
    if tokens == 0:
        return path
    cdef int32_t[::1] p = path
    cdef float[::1] scratch = np.empty(2 * labels, np.float32)
    cdef uint8_t[::1] back = np.empty(tokens * labels, np.uint8)
    cdef int illegal
    with nogil:
        illegal = fc_viterbi(&logits[0, 0], tokens, labels, &transition_scores[0, 0], &start_scores[0], &end_scores[0],
                             &scratch[0], &back[0], &p[0])
    if illegal:
        raise ValueError("no path through the labels is legal: check the transition, start and end scores")
    return path


def time_read(const uint8_t[::1] data not None, int streams, int num_threads) -> float:
    """Seconds for num_threads threads to read `data` once, in `streams` contiguous streams each."""
    cdef double seconds
    _check_threads(num_threads)
    if streams < 1 or data.shape[0] < 256 * streams * num_threads:
        raise ValueError("streams must be positive and the data at least 256 bytes for each")
    with nogil:
        seconds = fc_time_read(&data[0], data.shape[0], streams, num_threads)
    return seconds


def flops_peak(int num_threads) -> float:
    """FLOP/s of the f32 kernel on operands in L1."""
    cdef double flops
    _check_threads(num_threads)
    with nogil:
        flops = fc_flops_peak(num_threads)
    return flops
