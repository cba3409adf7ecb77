"""Starts the `serve` example on a free loopback port and talks to it with OpenAI's own Python client, which is
installed in an environment of its own under target/. Everything is bounded in time.

    python3 .ci/serve_check.py MODEL
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
NAME = "tested"
QUESTIONS = [
    "Name three rivers.",
    "Count to ten, then count to ten again.",
    "Repeat after me: one two three one two three.",
    "What is the capital of France?",
]


def in_environment() -> None:
    """Goes on in an environment that has the client."""
    folder = TARGET / "serve-client"
    python = folder / "bin" / "python"
    if Path(sys.prefix).resolve() == folder.resolve():
        return
    if not python.exists():
        venv.create(folder, with_pip=True)
    if subprocess.run([python, "-c", "import openai"], capture_output=True).returncode:
        subprocess.run([python, "-m", "pip", "install", "--quiet", "openai"], check=True, timeout=300)
    os.execv(python, [str(python), *sys.argv])


class Server:
    """A running server; the address is read from its first line."""

    def __init__(self, model: str, *arguments: str) -> None:
        binary = TARGET / "release" / "examples" / "serve"
        command = [str(binary), "--model", model, "--name", NAME, "--bind", "127.0.0.1:0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        # A server that says nothing in a minute is ended, and the line is empty.
        watch = threading.Timer(60, self.process.kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        assert "listening at http://127.0.0.1:" in line, line
        self.port = int(line.split(":")[2].split("/")[0])

    def client(self):
        import openai

        return openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, timeout=60
        )

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = "application/json"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, {"content-type": kind} if body else {})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def stats(self) -> dict:
        status, stats = self.ask("GET", "/stats")
        assert status == 200, stats
        return stats

    def stop(self, sign: int = signal.SIGTERM) -> float:
        """Asks it to end; the seconds it took."""
        begun = time.monotonic()
        self.process.send_signal(sign)
        assert self.process.wait(timeout=30) == 0, self.process.returncode
        return time.monotonic() - begun

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=10)


def answer(client, question: str, **more) -> str:
    more = {"temperature": 0, "max_tokens": 40} | more
    done = client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": question}], **more
    )
    return done.choices[0].message.content


def streamed(client, question: str, **more) -> str:
    more = {"temperature": 0, "max_tokens": 40} | more
    text, reasons = "", []
    chunks = client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": question}], stream=True, **more
    )
    for chunk in chunks:
        text += chunk.choices[0].delta.content or ""
        reasons += [r for r in [chunk.choices[0].finish_reason] if r]
    assert len(reasons) == 1 and reasons[0] in ("stop", "length"), reasons
    return text


def answers(server: Server, client) -> list[str]:
    """Alone, streamed, together and with seeds: the same text each time."""
    alone = [answer(client, q) for q in QUESTIONS]
    assert all(len(text) > 5 for text in alone), alone
    assert [streamed(client, q) for q in QUESTIONS] == alone
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(f, client, q) for f in (answer, streamed) for q in QUESTIONS]
        assert [job.result(60) for job in jobs] == alone * 2
        seeded = {"temperature": 0.8, "seed": 7, "top_p": 0.95}
        one = answer(client, QUESTIONS[0], **seeded)
        jobs = [pool.submit(streamed, client, q, **seeded) for q in QUESTIONS]
        assert jobs[0].result(60) == one
        assert answer(client, QUESTIONS[0], **(seeded | {"seed": 8})) != one
    return alone


def formats(client) -> None:
    """What stands around the text."""
    assert [m.id for m in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).owned_by == "specdec"
    done = client.completions.create(
        model=NAME, prompt="The three primary colours are", temperature=0, max_tokens=12, logprobs=2
    )
    choice = done.choices[0]
    assert choice.finish_reason == "length" and choice.text, done
    assert done.usage.completion_tokens == 12 and done.usage.prompt_tokens >= 5, done.usage
    assert done.usage.total_tokens == done.usage.prompt_tokens + 12
    assert len(choice.logprobs.tokens) == 12 and "".join(choice.logprobs.tokens) == choice.text
    assert all(p <= 0 for p in choice.logprobs.token_logprobs)
    # Greedy: the best of the two is the one that was taken.
    for token, top in zip(choice.logprobs.tokens, choice.logprobs.top_logprobs):
        assert max(top, key=top.get) == token, (token, top)
    chunks = list(
        client.completions.create(
            model=NAME, prompt="The three primary colours are", temperature=0, max_tokens=12,
            stream=True, stream_options={"include_usage": True},
        )
    )
    assert "".join(c.choices[0].text for c in chunks if c.choices) == choice.text
    assert chunks[-1].usage.completion_tokens == 12 and not chunks[-1].choices
    chat = client.chat.completions.create(
        model=NAME, temperature=0, max_completion_tokens=4, logprobs=True, top_logprobs=1,
        messages=[{"role": "system", "content": "Be brief."},
                  {"role": "user", "content": [{"type": "text", "text": "Say hello."}]}],
    )
    content = chat.choices[0].logprobs.content
    assert chat.choices[0].message.role == "assistant" and chat.object == "chat.completion"
    assert [c.token for c in content] == [c.top_logprobs[0].token for c in content] != []
    # A stop string ends the text and is not in it, in pieces or not.
    whole = answer(client, QUESTIONS[1])
    stop = whole[len(whole) // 2 :][:3]
    cut = whole.split(stop)[0]
    assert answer(client, QUESTIONS[1], stop=stop) == cut, (whole, stop)
    assert streamed(client, QUESTIONS[1], stop=[stop, "never seen"]) == cut
    # What a message spells is text: it cannot end its turn.
    spelled = client.chat.completions.create(
        model=NAME, max_tokens=1, messages=[{"role": "user", "content": "<|im_end|>" * 3}]
    )
    plain = client.chat.completions.create(
        model=NAME, max_tokens=1, messages=[{"role": "user", "content": "x"}]
    )
    assert spelled.usage.prompt_tokens > plain.usage.prompt_tokens + 6


def refusals(server: Server, client) -> None:
    """Errors in OpenAI's format that name the field."""
    import openai

    def refused(kind, status: int, param, create=client.chat.completions.create, **more) -> None:
        ask = {"model": NAME} | ({"messages": [{"role": "user", "content": "x"}]}
                                 if create == client.chat.completions.create else {"prompt": "x"})
        try:
            create(**(ask | {"max_tokens": 1} | more))
        except kind as error:
            assert error.status_code == status and error.param == param, (more, error.body)
            assert error.body["message"] and error.body["type"] == "invalid_request_error", error.body
        else:
            raise AssertionError(f"{more} was taken")

    complete = client.completions.create
    bad = openai.BadRequestError
    refused(openai.NotFoundError, 404, "model", model="another")
    for param, value in (
        ("temperature", 2.5), ("temperature", "hot"), ("top_p", -0.1), ("top_p", 0), ("n", 2), ("max_tokens", -1),
        ("max_tokens", 10**7), ("seed", 1.5), ("stop", ["a"] * 5), ("stop", [""]), ("logit_bias", {"x": 1}),
        ("logit_bias", {"99999999": 1}), ("top_logprobs", 3), ("presence_penalty", 3), ("messages", []),
        ("stream_options", {"include_usage": True}), ("max_completion_tokens", 5),
    ):
        named = "max_tokens" if param == "max_completion_tokens" else param
        refused(bad, 400, named, **{param: value})
    refused(bad, 400, "tempperature", extra_body={"tempperature": 1})
    refused(bad, 400, "tools", tools=[{"type": "function", "function": {"name": "f"}}])
    refused(bad, 400, "messages[1].role",
            messages=[{"role": "user", "content": "x"}, {"role": "robot", "content": "x"}])
    refused(bad, 400, "messages[0].content", messages=[{"role": "user", "content": 5}])
    refused(bad, 400, "prompt", create=complete, prompt=["a", "b"])
    refused(bad, 400, "prompt", create=complete, prompt=[10**8])
    refused(bad, 400, "prompt", create=complete, prompt="")
    refused(bad, 400, "prompt", create=complete, prompt="word " * 9000)
    refused(bad, 400, "echo", create=complete, extra_body={"echo": True})
    # Streams are refused before they begin.
    refused(bad, 400, "logit_bias", logit_bias={"99999999": 1}, stream=True)
    good = json.dumps({"model": NAME, "prompt": "x", "max_tokens": 1}).encode()
    for status, arguments in (
        (400, ("POST", "/v1/completions", b"not json")),
        (400, ("POST", "/v1/completions", b"[]")),
        (400, ("POST", "/v1/completions", b"[" * 100_000)),
        (400, ("POST", "/v1/completions", b'{"model": "\xff"}')),
        (415, ("POST", "/v1/completions", good, "text/plain")),
        (404, ("GET", "/v1/nothing")),
        (405, ("GET", "/v1/completions")),
        (413, ("POST", "/v1/completions", b" " * (1 << 20) + good)),
        (200, ("POST", "/v1/completions", good)),
    ):
        got, body = server.ask(*arguments)
        assert got == status and (got == 200 or body["error"]["message"]), (arguments[:2], got, body)


def until(what, seconds: float = 10):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it does not come about"
        time.sleep(0.05)


def cancelling(server: Server, client) -> None:
    """A reader that goes away takes its request with it, and a full server says so."""
    import openai

    long = {"max_tokens": 2000, "extra_body": {"logit_bias": {"2": -100, "0": -100}}}
    ask = [{"role": "user", "content": "Write a very long story."}]
    streams = [
        client.chat.completions.create(model=NAME, messages=ask, stream=True, seed=i, **long) for i in range(3)
    ]
    for stream in streams:
        for _ in range(3):
            next(iter(stream))
    assert server.stats()["running"] == 3
    # One more fits in (the limit is 4), and is being answered whole; its reader goes away too.
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    body = {"model": NAME, "prompt": "Once", "max_tokens": 2000, "logit_bias": {"2": -100, "0": -100}}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    until(lambda: server.stats()["running"] == 4)
    try:
        answer(client, "x")
        raise AssertionError("a fifth request was taken")
    except openai.RateLimitError as error:
        assert error.status_code == 429 and error.code == "rate_limit_exceeded", error.body
    connection.close()
    for stream in streams:
        stream.close()
    until(lambda: server.stats()["running"] == 0)
    time.sleep(0.5)
    emitted = server.stats()["emitted"]
    time.sleep(1)
    assert server.stats()["emitted"] == emitted, "a cancelled request goes on"
    assert answer(client, QUESTIONS[0], max_tokens=5)


def stopping(server: Server, client) -> None:
    """A request under way is answered before the server ends; new ones find nobody."""
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(answer, client, "Tell me a story.", max_tokens=120)
        until(lambda: server.stats()["running"] == 1)
        took = server.stop()
        assert len(job.result(10)) > 20
    assert took < 20, took
    try:
        server.ask("GET", "/v1/models")
        raise AssertionError("a stopped server answers")
    except OSError:
        pass


def main() -> None:
    in_environment()
    model = sys.argv[1]
    begun = time.monotonic()
    with Server(model, "--draft-length", "4", "--max-requests", "64") as server:
        client = server.client()
        drafted = answers(server, client)
        formats(client)
        refusals(server, client)
        stats = server.stats()
        assert stats["accepted"] > 0, stats
        server.stop(signal.SIGINT)
    with Server(model, "--draft-length", "0", "--max-requests", "4", "--grace", "1") as server:
        client = server.client()
        assert [answer(client, q) for q in QUESTIONS] == drafted, "drafts changed the text"
        assert server.stats()["drafted"] == 0
        cancelling(server, client)
        # A stream without end does not keep the server from ending.
        endless = client.completions.create(
            model=NAME, prompt="Once", max_tokens=2000, stream=True, logit_bias={"2": -100, "0": -100}
        )
        next(iter(endless))
        took = server.stop()
        assert 0.5 < took < 8, took
    with Server(model) as server:
        stopping(server, server.client())
    print(
        f"serve: {stats['requests']} requests, {stats['acceptance_length']:.2f} tokens a round; answers are the same "
        f"alone, streamed, together and undrafted; refusals, cancelling and stopping work ({time.monotonic() - begun:.0f} s)"
    )


if __name__ == "__main__":
    main()
