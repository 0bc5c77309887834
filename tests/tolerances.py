"""Every tolerance of the tests. Results that must be equal have none: compare them with `==` or np.array_equal."""

# Whole models, against the oracle in float64 or a golden
LOGITS_RELATIVE_TO_STD = 2e-4  # max |difference| over the std of all logits: f32 rounding through the layers
QUANTISED_LOGITS = {
    "int8": 0.05,
    "int4": 0.5,
}  # root mean square of the difference over the std: what 8 and 4 bits do to a tiny random model
SENSITIVITY = 1e-4  # absolute, on the sensitivity logit, which is of the order of 1
GREEDY_MIN_GAP = 1e-3  # greedy tokens must agree where the two best logits differ by more than this
GREEDY_MIN_GAP_CANCELLED = 2e-2  # the same, after terms of 1e5 that cancelled and left their f32 rounding behind
LOGPROB = 2e-4  # absolute, on one log-probability: the logits' tolerance at a spread of about 1

# Single ops in f32, against the oracle in float64
LINEAR = 2e-6  # times sum |w| |x| of the output: one f32 chain of a few hundred fused multiply-adds
TINY = 1e-36  # absolute: groups of nothing larger are quantised to zeros
CONV = 1e-6  # times sum |w| |x| + |bias|: a chain of at most a few taps
NORM = 2e-6  # relative: a sum of squares, a square root, two multiplications
ROPE = 1e-6  # times the length of the rotated pair: two products of tables rounded to f32
EXP_ULPS = 2  # units in the last place of the f32 result
WEIGHT = 2e-5  # relative: exp of a drop of up to 87 that was itself rounded to f32
SILU = 1e-6  # relative: one exp, one division
SOFTPLUS = 1e-6  # relative: one exp, one log
SOFTMAX = 2e-6  # absolute, on probabilities
LOG_SOFTMAX = 2e-6  # absolute, on one log-probability: f32 weights summed in double, at a spread of about 10
DRAW_MARGIN = 2e-6  # of the mass: a draw closer than this to a boundary may fall on either side of it
ATTENTION = 5e-6  # times the largest |v|: scores of the order of 1 to 10 go through exp
SCAN = 2e-5  # times the largest |y|: the state's rounding is carried from step to step
STATE_DRIFT = 1e-3  # times the largest |state|, after 512 steps in f32
DECAY_RATE = 1e-6  # relative, of a rate computed in double and stored in f32
VITERBI_SCORE = 1e-5  # relative, on the score of a path: one f32 addition a token

# Formulas evaluated in double on both sides
DOUBLE = 1e-12  # relative: the two sides may order their operations differently
F32_TABLE = 6e-8  # absolute, on cos and sin computed in double and stored in f32: half a unit in the last place
FREQUENCY_IN_F32 = 2e-6  # relative: figures that transformers computed in f32, through a power and a blend
