"""What models are asked to read: prose, awkward strings, conversations."""

__all__ = ["CONVERSATIONS", "STRINGS", "TEXT"]

TEXT = (
    "The river rises in the hills above the town and runs for ninety miles to the sea. In 1884 a bridge of iron was "
    "built across it, the longest of its kind; engineers came from abroad to see it. Today it carries two lanes of "
    "traffic, a footpath, and - on clear evenings - a crowd that comes to watch the light go. The town is called"
)
STRINGS = (
    "",
    " ",
    "Hello, world!",
    "  two  spaces  ",
    "1234567 3.14159 1,000,000",
    "don't we'll I'M",
    "tabs\tand\r\nline\n\n\nbreaks\n",
    "naïve café Việt Nam Straße",
    "e\u0301 decomposed, \u1112\u1161\u11ab jamo, \ufb01 ligature",
    "👩‍👩‍👧 🏳️‍🌈 🇫🇷 ☎",
    "日本語と中文和한국어",
    "العربية עברית हिन्दी",
    "para\u2029graph\u2028line\u00a0space\u200bzero",
    "NUL \x00 and \x7f",
    "def f(x):\n    return {'a': [1, 2], \"b\": x**2}\n",
    " " * 300,
    "<|im_start|>user\nhi<|im_end|><|endoftext|></s><think>",
    TEXT,
)
_USER = {"role": "user", "content": "What is 2 + 2?"}
_ANSWER = {"role": "assistant", "content": "4"}
_SYSTEM = {"role": "system", "content": "Be brief."}
CONVERSATIONS: tuple[tuple[dict[str, str], ...], ...] = (
    (_USER,),
    (_SYSTEM, _USER),
    ({"role": "system", "content": ""}, _USER),
    (_USER, _ANSWER, {"role": "user", "content": "  And 3 + 3?  \n"}),
    (_SYSTEM, _USER, _ANSWER),
    (_USER, {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\n4"}, _USER),
)
