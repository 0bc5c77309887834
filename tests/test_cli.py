"""The command line, on tiny checkpoints: what it prints, what it refuses, and how it ends."""

import fcntl
import io
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import tiny_checkpoint

import fastcore
from fastcore import LLM, SamplingParams
from fastcore._kernels import BLOCK_TOKENS, active_isa, available_isas
from fastcore.checkpoints.open import open_checkpoint
from fastcore.cli import COMMANDS, main
from fastcore.engine.state import StatePool
from fastcore.models import load_model
from fastcore.threads import default_num_threads

PROMPT = "the quick brown fox"


@pytest.fixture(scope="module")
def folder(tiny_folder: Callable[..., Path]) -> Path:
    return tiny_folder("qwen2")


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, num_threads=1)


@pytest.fixture(scope="module")
def endless(tiny_folder: Callable[..., Path]) -> Path:
    """A checkpoint whose context takes long to fill."""
    return tiny_folder("llama", max_position_embeddings=100_000)


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "fastcore", *map(str, arguments)]


def process_options(tmp_path: Path) -> dict[str, Any]:
    """Options of subprocess: run this very fastcore, from a folder that holds no other."""
    home = str(Path(fastcore.__file__).parent.parent)
    return {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": home}, "text": True, "encoding": "utf-8"}


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start `fastcore chat` with pipes; what still runs at the end of the test is killed."""
    started = []

    def start(*arguments: str | Path) -> "subprocess.Popen[str]":
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command("chat", "--threads", "1", *arguments), **pipes, **process_options(tmp_path))
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


# ---------------------------------------------------------------- generate


def test_generate_prints_the_completion_and_timings(folder: Path, llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--model", str(folder), PROMPT, "--max-tokens", "9"]) == 0
    out, err = capsys.readouterr()
    expected = llm.generate(PROMPT, max_tokens=9)
    assert out == expected.text + "\n"
    assert f"prompt {expected.usage.prompt_tokens} tokens" in err
    assert f"new {expected.usage.completion_tokens} tokens" in err
    assert err.count("\n") == 1


def test_generate_as_json(folder: Path, llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--model", str(folder), "--prompt", PROMPT, "--max-tokens", "9", "--json"]) == 0
    out, err = capsys.readouterr()
    printed = json.loads(out)
    expected = llm.generate(PROMPT, max_tokens=9)
    assert err == ""
    assert printed["text"] == expected.text
    assert printed["token_ids"] == expected.token_ids
    assert printed["finish_reason"] == expected.finish_reason
    usage = {"prompt_tokens": expected.usage.prompt_tokens, "completion_tokens": len(expected.token_ids)}
    assert printed["usage"] == usage | {"total_tokens": sum(usage.values())}
    assert printed["timings"].keys() == {
        "load_seconds",
        "prefill_seconds",
        "decode_seconds",
        "prefill_tokens_per_second",
        "decode_tokens_per_second",
    }


def test_generate_passes_every_sampling_option(folder: Path, llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {
        "max_tokens": 12,
        "temperature": 1.5,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "seed": 7,
    }
    params = SamplingParams(**options, ignore_eos=True)
    text = llm.generate(PROMPT, params).text
    stop = text[len(text) // 2]
    expected = llm.generate(PROMPT, params.replace(stop=["\x00", stop]))
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    words += ["--ignore-eos", "--stop", "\x00", "--stop", stop, "--threads", "2", "--dtype", "f32", "--json"]
    assert main(["generate", "--model", str(folder), PROMPT, *words]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["token_ids"] == expected.token_ids
    assert printed["text"] == expected.text
    assert printed["finish_reason"] == "stop"


def test_generate_through_the_chat_template(folder: Path, llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--chat", "--system", "be brief", "--max-tokens", "5", "--json"]
    assert main(["generate", "--model", str(folder), PROMPT, *arguments]) == 0
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": PROMPT}]
    assert json.loads(capsys.readouterr().out)["token_ids"] == llm.chat(messages, max_tokens=5).token_ids


def test_generate_reads_the_prompt_from_stdin(folder: Path, llm: LLM, tmp_path: Path) -> None:
    prompt = "zwei\r\nZeilen mit ü\n"
    done = subprocess.run(
        command("generate", "--model", folder, "-", "--max-tokens", "3", "--json", "--threads", "1"),
        input=prompt.encode(),
        capture_output=True,
        **{name: value for name, value in process_options(tmp_path).items() if name in ("cwd", "env")},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["token_ids"] == llm.generate(prompt[:-1], max_tokens=3).token_ids


def test_max_tokens_zero_gives_an_empty_completion(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--model", str(folder), PROMPT, "--max-tokens", "0", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["text"], printed["token_ids"], printed["finish_reason"]) == ("", [], "length")


# ---------------------------------------------------------------- refusals and endings


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "--model", "no/such/model/here", "x"], "no model 'no/such/model/here'"),
        (["generate", "--model", "{folder}", "x", "--temperature", "-1"], "temperature is -1.0"),
        (["generate", "--model", "{folder}", "x", "--dtype", "f8"], "dtype is 'f8'"),
        (["generate", "--model", "{folder}", "x", "--threads", "0"], "num_threads is 0"),
        (["generate", "--model", "{folder}", "x", "--max-seq-len", "513"], "max_seq_len is 513"),
        (["generate", "--model", "{folder}", "x" * 100, "--max-seq-len", "4"], "context holds 4"),
        (["generate", "--model", "{folder}", "x", "--system", "y"], "--system needs --chat"),
        (["bench", "{folder}", "--new-tokens", "0"], "steps is 0"),
        (["bench", "{folder}", "--prompt-tokens", "600"], "600 tokens are asked for and the model's context holds 512"),
        (["pull", "nosuchname"], "nosuchname"),
        (["info", "no/such/model/here"], "no model 'no/such/model/here'"),
    ],
)
def test_failures_exit_with_1_and_a_message(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument.format(folder=folder) for argument in arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fastcore: ")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["generate"],
        ["generate", "x", "--prompt", "y"],
        ["generate", "x", "--no-such-option"],
        ["generate", "x", "--max-tokens", "many"],
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: fastcore" in capsys.readouterr().err


def test_no_command_shows_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().err
    assert all(f"\n  {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help(name: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*([] if name is None else [name]), "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "usage: fastcore" in out
    assert name is not None or all(f"  {command} " in out for command in COMMANDS)


def test_chat_goes_on_after_a_line_that_is_not_text(folder: Path, tmp_path: Path) -> None:
    options = process_options(tmp_path)
    del options["text"], options["encoding"]
    arguments = command("chat", "--model", folder, "--max-tokens", "2")
    run = subprocess.run(arguments, input=b"caf\xe9\nhello\n", capture_output=True, **options)
    assert run.returncode == 0
    assert b"not valid Unicode" in run.stderr
    assert run.stdout.count(b"\n") == 1


def test_export_writes_a_pack_that_computes_the_same(
    tiny_folder: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, pack = tiny_folder("falcon_h1"), tmp_path / "m.fh1w"
    assert main(["export", str(model), str(pack)]) == 0
    assert capsys.readouterr().out == f"{pack}\n"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((model / name).read_bytes())
    assert np.array_equal(LLM(pack).logits([5, 6, 7]), LLM(model).logits([5, 6, 7]))
    assert main(["export", str(model), str(tmp_path / "m.bin")]) == 1
    assert "does not end in .fh1w" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"fastcore {fastcore.__version__}\n"


def test_a_reader_that_leaves_ends_it_quietly(endless: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("generate", "--model", endless, PROMPT, "--max-tokens", "90000", "--ignore-eos", "--threads", "1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **process_options(tmp_path),
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 141


def test_an_interrupt_ends_generate_with_130(endless: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("generate", "--model", endless, PROMPT, "--max-tokens", "90000", "--ignore-eos", "--threads", "1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **process_options(tmp_path),
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert err == ""
        assert process.returncode == 130


# ---------------------------------------------------------------- chat


def test_chat_keeps_the_conversation_until_reset(folder: Path, llm: LLM, chat: Callable[..., Any]) -> None:
    process = chat("--model", folder, "--system", "be brief", "--max-tokens", "6")
    out, err = process.communicate("hello\nmore\n/reset\n\nhello\n/nonsense\n/exit\nnever read\n", timeout=60)
    system, hello = {"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}
    first = llm.chat([system, hello], max_tokens=6).text
    answered = {"role": "assistant", "content": first}
    second = llm.chat([system, hello, answered, {"role": "user", "content": "more"}], max_tokens=6).text
    assert out == "".join(f"{answer}\n" for answer in (first, second, first))
    assert err.startswith("no command /nonsense: ")
    assert process.returncode == 0


def test_chat_ends_with_its_input(folder: Path, chat: Callable[..., Any]) -> None:
    process = chat("--model", folder)
    assert process.communicate("", timeout=60) == ("", "")
    assert process.returncode == 0


def test_chat_goes_on_after_a_message_that_does_not_fit(folder: Path, llm: LLM, chat: Callable[..., Any]) -> None:
    process = chat("--model", folder, "--max-tokens", "3")
    out, err = process.communicate(f"{'x' * 2000}\nhello\n", timeout=60)
    assert out == llm.chat([{"role": "user", "content": "hello"}], max_tokens=3).text + "\n"
    assert "the context holds 512" in err
    assert process.returncode == 0


def test_an_interrupt_stops_the_answer_and_the_next_one_chat(endless: Path, chat: Callable[..., Any]) -> None:
    process = chat("--model", endless, "--max-tokens", "90000", "--ignore-eos")
    process.stdin.write("hello\n")
    process.stdin.flush()
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    process.stdin.write("/help\n")
    process.stdin.flush()
    assert "/reset" in process.stderr.readline()  # it is back at the prompt
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


def test_chat_at_a_terminal_prompts(folder: Path, tmp_path: Path) -> None:
    parent, child = pty.openpty()
    options = process_options(tmp_path)
    with subprocess.Popen(
        command("chat", "--model", folder, "--max-tokens", "2"), stdin=child, stdout=child, stderr=child, **options
    ) as process:
        os.close(child)
        shown = b""
        while b">>> " not in shown:
            shown += os.read(parent, 1024)
        assert b"/reset" in shown
        os.write(parent, b"/exit\n")
        while True:  # what is left must be read for the process to end
            try:
                if not os.read(parent, 1024):
                    break
            except OSError:  # how Linux ends the other side
                break
        assert process.wait(60) == 0
    os.close(parent)


@pytest.mark.fault("H5")
def test_chat_takes_a_message_of_several_lines(folder: Path, llm: LLM, chat: Callable[..., Any]) -> None:
    process = chat(folder, "--max-tokens", "4")
    out, _ = process.communicate('"""first\n  second\n"""\n"""a"""\n"""never ended', timeout=60)
    messages: list[dict[str, str]] = []
    for text in ("first\n  second", "a", "never ended"):
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": llm.chat(messages, max_tokens=4).text})
    assert out == "".join(f"{message['content']}\n" for message in messages if message["role"] == "assistant")


@pytest.mark.fault("H5")
def test_chat_shows_timings_when_asked(folder: Path, chat: Callable[..., Any]) -> None:
    _, err = chat("-m", folder, "--max-tokens", "4").communicate("hello\n/timings\nhello\n", timeout=60)
    assert err.count("prompt ") == 1
    _, err = chat("-m", folder, "--max-tokens", "4", "--timings").communicate("hello\n/timings\nhello\n", timeout=60)
    assert err.count("prompt ") == 1


@pytest.mark.fault("H5")
def test_ctrl_c_clears_a_half_typed_line_and_lines_are_kept(folder: Path, tmp_path: Path) -> None:
    options = process_options(tmp_path)
    options["env"] |= {"XDG_STATE_HOME": str(tmp_path / "state")}
    parent, child = pty.openpty()
    with subprocess.Popen(
        command("chat", folder, "--max-tokens", "2"), stdin=child, stdout=child, stderr=child,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), **options,
    ) as process:  # fmt: skip
        os.close(child)

        def until(end: bytes, again: bytes = b"") -> bytes:
            """What is shown up to `end`. again: to send once more while nothing comes."""
            shown, deadline = b"", time.monotonic() + 60
            while end not in shown:
                assert time.monotonic() < deadline, shown
                if select.select([parent], [], [], 2)[0]:
                    shown += os.read(parent, 1024)
                else:
                    os.write(parent, again)
            return shown

        assert f"{folder} (qwen2, ".encode() in until(b">>> ")
        os.write(parent, b"half typed")
        until(b"typed")
        os.write(parent, b"\x03")  # Python misses one that comes just before it waits
        until(b">>> ", again=b"\x03")
        os.write(parent, b"/nonsense\n")
        until(b"no command /nonsense")
        os.write(parent, b"/exit\n")
        while True:  # what is left must be read for the process to end
            try:
                if not os.read(parent, 1024):
                    break
            except OSError:  # how Linux ends the other side
                break
        assert process.wait(60) == 0
    os.close(parent)
    kept = tmp_path / "state" / "fastcore" / "chat_history"
    assert "/nonsense" in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0


@pytest.mark.fault("H3")
def test_chat_samples_as_the_checkpoint_recommends(
    tiny_folder: Callable[..., Path], tmp_path: Path, chat: Callable[..., Any]
) -> None:
    shutil.copytree(tiny_folder("qwen2"), tmp_path / "m")
    recommended = {"do_sample": True, "temperature": 5.0, "top_k": 7, "repetition_penalty": 1.5}
    (tmp_path / "m" / "generation_config.json").write_text(json.dumps(recommended))
    llm = LLM(tmp_path / "m", num_threads=1)
    hello = [{"role": "user", "content": "hello"}]

    def answer(*options: str) -> str:
        return str(chat(tmp_path / "m", "--max-tokens", "9", "--seed", "3", *options).communicate("hello\n")[0])

    options = {"temperature": 5.0, "top_k": 7, "repetition_penalty": 1.5, "max_tokens": 9, "seed": 3}
    assert answer() == llm.chat(hello, SamplingParams(**options)).text + "\n"
    assert answer("--top-k", "3") == llm.chat(hello, SamplingParams(**options | {"top_k": 3})).text + "\n"
    assert answer("--no-generation-config") == llm.chat(hello, max_tokens=9).text + "\n"
    assert answer("--temperature", "0", "--repetition-penalty", "1") == llm.chat(hello, max_tokens=9).text + "\n"


@pytest.mark.fault("H5")
@pytest.mark.parametrize("name", ["info", "verify", "bench", "chat", "serve", "pull", "export"])
def test_a_model_is_named_by_its_place_or_by_an_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["m.fh1w"] if name == "export" else []
    if name != "serve":  # which takes any number
        assert main([name, "nowhere", *out, "-m", "elsewhere"]) == 1
        assert "two models are named, nowhere and elsewhere" in capsys.readouterr().err
    messages = []
    for arguments in (["./nowhere", *out], ["-m", "./nowhere", *out], ["--model", "./nowhere", *out]):
        assert main([name, *arguments]) == 1
        messages.append(capsys.readouterr().err)
    assert "nowhere" in messages[0]
    assert len(set(messages)) == 1


def test_chat_needs_a_template(
    tiny_folder: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for path in tiny_folder("qwen2").iterdir():
        if path.name == "tokenizer_config.json":
            config = json.loads(path.read_text())
            (folder / path.name).write_text(json.dumps({k: v for k, v in config.items() if k != "chat_template"}))
        elif path.suffix != ".jinja":
            (folder / path.name).write_bytes(path.read_bytes())
    assert main(["chat", "--model", str(folder)]) == 1
    assert "no chat template" in capsys.readouterr().err


# ---------------------------------------------------------------- info


def test_info_of_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    machine = json.loads(capsys.readouterr().out)["machine"]
    assert machine["fastcore"] == fastcore.__version__
    assert machine["instruction_sets"] == list(available_isas())
    assert machine["active_instruction_set"] == active_isa()
    assert machine["threads"] == default_num_threads()
    assert main(["info"]) == 0
    assert active_isa() in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model_type", "tie"), [("qwen2", True), ("llama", False), ("qwen3", True), ("falcon_h1", False)]
)
def test_info_plans_what_loading_takes(
    model_type: str, tie: bool, tiny_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_folder(model_type, tie=tie)
    assert main(["info", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["model"]
    with open_checkpoint(folder) as checkpoint:
        assert facts["parameters"] == sum(tensor.nbytes // 2 for tensor in checkpoint.values())
    assert facts["stored_parameters"] == {"BF16": facts["parameters"]}
    assert facts["weight_bytes"]["auto"] == facts["weight_bytes"]["bf16"]
    for dtype in ("auto", "f32"):
        model = load_model(folder, dtype)
        assert facts["weight_bytes"][dtype] == model.weight_bytes
    assert facts["kv_bytes_per_token"]["f16"] == StatePool(model, 1, "f16").block_bytes // BLOCK_TOKENS
    assert facts["recurrent_state_bytes"] == model.program.state_bytes
    assert facts["tie_word_embeddings"] is tie
    assert facts["chat_template"] is True
    assert facts["max_position_embeddings"] == 512


def test_info_prints_lines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(folder)]) == 0
    lines = [line.split(None, 2) for line in capsys.readouterr().out.splitlines()]
    assert ["model", "type", "qwen2"] in lines


def test_too_little_memory_is_an_error_in_one_line(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    folder = tiny_checkpoint(tmp_path / "m", "qwen2", vocab_size=100_000, hidden_size=512, num_hidden_layers=1)
    code = """
import resource, sys
from fastcore import LLM
from fastcore.cli import main
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (used * 1024 + (180 << 20),) * 2)
sys.exit(main(["generate", "--model", sys.argv[1], "--threads", "1", "--max-tokens", "1", "a"]))
"""
    if not Path("/proc/self/status").exists() or not hasattr(resource, "RLIMIT_AS"):
        pytest.skip("this system does not limit or show the address space")
    child = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert child.returncode == 1
    assert child.stderr.startswith("fastcore: the system does not give ")
    assert child.stderr.count("\n") == 1


def test_a_wrong_bias_is_told_what_is_expected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "x", "--logit-bias", "foo"])
    assert "argument --logit-bias: 'foo'; expected ID=B, a token id and a number" in capsys.readouterr().err


def test_with_stderr_closed_nothing_but_the_text_is_printed(folder: Path, llm: LLM, tmp_path: Path) -> None:
    line = f"{sys.executable} -m fastcore generate --model {folder} '{PROMPT}' --max-tokens 3 2>&-"
    done = subprocess.run(["bash", "-c", line], stdout=subprocess.PIPE, **process_options(tmp_path))
    assert (done.returncode, done.stdout) == (0, llm.generate(PROMPT, max_tokens=3).text + "\n")


@pytest.mark.parametrize(("end", "kept"), [("", ""), ("\n", ""), ("\r\n", ""), ("\n\n", "\n")])
def test_a_prompt_from_stdin_is_what_stands_before_its_last_line_end(
    folder: Path, llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, end: str, kept: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT + end))
    assert main(["generate", "--model", str(folder), "-", "--max-tokens", "5", "--json"]) == 0
    expected = llm.generate(PROMPT + kept, max_tokens=5)
    printed = json.loads(capsys.readouterr().out)
    assert printed["token_ids"] == expected.token_ids
    assert printed["usage"]["prompt_tokens"] == expected.usage.prompt_tokens


@pytest.mark.fault("C9")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("info > /dev/full", "No space left on device"),
        ("info >&-", "standard output is closed"),
        ("serve {folder} --port 99999", "--port is 99999"),
        ("export {falcon} /no/such/folder/m.fh1w", "/no/such/folder"),
    ],
)
def test_a_closed_or_full_output_is_one_line(
    folder: Path, tiny_folder: Callable[..., Path], tmp_path: Path, words: str, message: str
) -> None:
    line = words.format(folder=folder, falcon=tiny_folder("falcon_h1"))
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m fastcore {line}"], stderr=subprocess.PIPE, **process_options(tmp_path)
    )
    assert done.returncode == 1
    assert done.stderr.startswith("fastcore: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
