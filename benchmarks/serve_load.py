"""Load of `longspan serve`: requests at a constant rate, each on a connection of its own, and how long they take.

    python benchmarks/serve_load.py RUN [--seconds 60] [--rate 50] [--words 200] [--workers 1]

RUN is a run of document classification. Texts are words of its tokenizer, drawn at random. A request begins when its
time has come, whether others are answered or not, so a slow server does not slow down the load. The server gets SIGTERM
at the end, with requests under way.
"""

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer


async def one(host: str, port: int, body: bytes) -> tuple[int, float]:
    """Status of a request and the seconds that it took; status 0 if the connection was lost."""
    began = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection(host, port)
        head = f"POST /predict HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        answer = await reader.read()
        writer.close()
        return int(answer.split(b" ", 2)[1]), time.perf_counter() - began
    except (OSError, IndexError, ValueError):
        return 0, time.perf_counter() - began


async def load(host: str, port: int, bodies: list[bytes], rate: float) -> list[tuple[int, float]]:
    """Results of requests that begin at a constant rate."""
    began, tasks = time.perf_counter(), []
    for number, body in enumerate(bodies):
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        tasks.append(asyncio.create_task(one(host, port, body)))
    return await asyncio.gather(*tasks)


async def stopped(host: str, port: int, bodies: list[bytes], server: subprocess.Popen[str]) -> list[tuple[int, float]]:
    """Results of requests that are under way as the server is stopped."""
    tasks = [asyncio.create_task(one(host, port, body)) for body in bodies]
    await asyncio.sleep(0.05)
    server.send_signal(signal.SIGTERM)
    return await asyncio.gather(*tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=50)
    parser.add_argument("--words", type=int, default=200)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    random.seed(0)
    vocabulary = [word.strip("Ġ▁") for word in Tokenizer.from_file(str(args.run / "tokenizer.json")).get_vocab()]
    words = sorted(word for word in vocabulary if word.isalpha() and len(word) > 2)
    texts = [" ".join(random.choices(words, k=args.words)) for _ in range(int(args.seconds * args.rate))]
    bodies = [json.dumps({"inputs": [text]}).encode() for text in texts]
    command = [
        sys.executable,
        "-m",
        "longspan",
        "serve",
        str(args.run),
        "--port=0",
        f"--workers={args.workers}",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["address"]
        host, _, port = address.removeprefix("http://").partition(":")
        # Until each process has its model.
        asyncio.run(load(host, int(port), bodies[:20] * args.workers, 10))
        found = asyncio.run(load(host, int(port), bodies, args.rate))
        last = asyncio.run(stopped(host, int(port), bodies[:16], server))
        code = server.wait()
    seconds = np.array([time for _, time in found])
    result = {
        "requests": len(found),
        "lost": sum(status != 200 for status, _ in found),
        **{f"p{share} ms": round(1000 * float(np.percentile(seconds, share)), 1) for share in (50, 95, 99, 100)},
        "under way at SIGTERM": len(last),
        "of these lost": sum(status != 200 for status, _ in last),
        "exit code": code,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
