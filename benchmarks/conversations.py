"""What a user of a server waits for: many streams at once, prompts that begin alike, and texts that repeat themselves.

    python benchmarks/conversations.py MODEL [streams] [prefix] [speculation]

Each result is compared with the one that it must equal before its time counts.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from statistics import mean, median
from time import perf_counter

from fastcore import LLM

LETTER = """Dear Ms. Miller, thank you for your order of the twelve oak chairs, which we recieved on Monday.
Unfortunately the carpenter has told us that the wood will not be dry before the end of the month,
so that the chairs can not leave our workshop before the third of May. We are sorry for the delay
and offer you a discount of ten percent on the whole order. If you would rather wait for the pine
chairs, which are ready, please let us know until Friday. Yours sincerely, the workshop team.""".replace("\n", " ")
CODE = """def count_words(path):
    result = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            for word in line.split():
                word = word.strip(".,;:!?").lower()
                if word:
                    result[word] = result.get(word, 0) + 1
    return result
"""
EDITS = (
    f"Repeat this letter word for word, but replace Monday by Tuesday:\n\n{LETTER}",
    f"Correct the spelling mistakes in this letter and write out the whole letter again:\n\n{LETTER}",
    f"Rename the variable `result` to `counts` everywhere and write out the whole code again:\n\n```python\n{CODE}```",
)
FREE = (
    "Write a short story about a lighthouse keeper who finds a strange bottle.",
    "Describe a walk through a city that you have never seen.",
    "Tell me what a day of a baker is like, from morning to night.",
)
TOPICS = ("rain", "snow", "wind", "fog", "sun", "moon", "night", "dawn", "dusk", "lakes", "seas", "hills", "woods")
STREAMS = 16


def ids(llm: LLM, question: str, system: str = "") -> list[int]:
    before = [{"role": "system", "content": system}] if system else []
    return llm.tokenizer.encode_chat([*before, {"role": "user", "content": question}])


def timed(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def streams(llm: LLM, tokens: int = 96) -> None:
    """16 threads, each with its own stream, beside one stream alone."""
    prompts = [ids(llm, f"Write {i + 3} lines about {TOPICS[i % len(TOPICS)]}.") for i in range(STREAMS)]

    def read(i: int) -> list[int]:
        chunks = llm.stream(prompts[i], max_tokens=tokens, ignore_eos=True)
        return [token_id for chunk in chunks for token_id in chunk.token_ids]

    alone: dict[int, list[int]] = {}
    seconds = [timed(lambda i=i: alone.update({i: read(i)})) for i in (0, 5)]
    together: dict[int, list[int]] = {}
    threads = [threading.Thread(target=lambda i=i: together.update({i: read(i)})) for i in range(len(prompts))]

    def run() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    all_at_once = timed(run)
    batch: list[list[int]] = []

    def complete() -> None:
        batch.extend(each.token_ids for each in llm.generate(prompts, max_tokens=tokens, ignore_eos=True))

    batch_seconds = timed(complete)
    assert all(together[i] == alone[i] for i in alone)
    assert [together[i] for i in range(len(prompts))] == batch
    as_batch = len(prompts) * tokens / batch_seconds
    one, many = tokens / min(seconds), len(prompts) * tokens / all_at_once
    print(
        f"one stream {one:.1f} tok/s, {len(prompts)} streams {many:.1f} tok/s in all: {many / one:.2f} x; "
        f"as one batch {as_batch:.1f}"
    )


def prefix(llm: LLM, turns: int = 10) -> None:
    """Time to the first token of a second question after a system prompt of 1,000 tokens, and of a chat's last turn."""
    system = ""
    while len(llm.tokenizer.encode(system)) < 1000:
        system += f"Rule {len(system)}: {LETTER} "
    plain = LLM.from_model(llm.model, llm.tokenizer, prefix_cache=False, num_threads=llm.num_threads)
    first, second = (ids(llm, f"What about {topic}?", system) for topic in ("chairs", "tables"))
    llm.generate(first[:40], max_tokens=1)  # warm
    times = [timed(lambda prompt=prompt: llm.generate(prompt, max_tokens=1)) for prompt in (first, second)]
    assert llm.generate(second, max_tokens=8).token_ids == plain.generate(second, max_tokens=8).token_ids
    print(f"system prompt, {len(first)} tokens: first token after {times[0]:.3f} s, then {times[1]:.3f} s, "
          f"{times[1] / times[0]:.3f} of it")  # fmt: skip
    messages: list[dict[str, str]] = []
    for turn in range(turns):
        messages.append(
            {"role": "user", "content": f"Tell me more, part {turn}." if turn else f"Reply to this: {LETTER * 3}"}
        )
        prompt = llm.tokenizer.encode_chat(messages)
        if turn == turns - 1:
            break
        messages.append({"role": "assistant", "content": llm.generate(prompt, max_tokens=60).text})
    warm = timed(lambda: llm.generate(prompt, max_tokens=1))
    whole = timed(lambda: plain.generate(prompt, max_tokens=1))
    assert llm.generate(prompt, max_tokens=8).token_ids == plain.generate(prompt, max_tokens=8).token_ids
    print(f"turn {turns} of a chat, {len(prompt)} tokens: first token after {warm:.3f} s, whole {whole:.3f} s, "
          f"{warm / whole:.3f} of it")  # fmt: skip


def speculation(llm: LLM, tokens: int = 80, rounds: int = 5) -> None:
    """Decoding with guesses and without, in turns: of each question the median of its rounds, and their mean."""
    for kind, questions, options in (
        ("edit", EDITS, {}),
        ("free", FREE, {}),
        ("free, sampled", FREE, {"temperature": 0.7, "seed": 1}),
    ):
        ratios = []
        for question in questions:
            prompt, found, rounds_ratios = ids(llm, question), set(), []
            for _ in range(rounds):
                seconds = []
                for speculate in ("off", "ngram"):
                    done = llm.generate(prompt, max_tokens=tokens, speculate=speculate, **options)
                    seconds.append(done.timings.decode)
                    found.add(tuple(done.token_ids))
                rounds_ratios.append(seconds[0] / seconds[1])
            assert len(found) == 1
            ratios.append(median(rounds_ratios))
        print(f"{kind}: {mean(ratios):.2f} x ({', '.join(f'{ratio:.2f}' for ratio in ratios)})", flush=True)


def main(model: str, names: Sequence[str]) -> None:
    llm = LLM(model)
    llm.generate("warm", max_tokens=4)
    for name in names or ("streams", "prefix", "speculation"):
        {"streams": streams, "prefix": prefix, "speculation": speculation}[name](llm)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
