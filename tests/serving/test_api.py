"""The API of a server: answers, limits, and what it refuses."""

import base64
import dataclasses
import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from decisive_words import write_run
from fastapi.testclient import TestClient

from longspan.serving.app import app_of
from longspan.serving.model import Limits, Service
from longspan.tasks.base.task import Run
from longspan.verbs.explain import explain_given
from longspan.verbs.predict import predict_given
from longspan.verbs.runs import load_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that answers "yes" to documents with the word "good"."""
    return load_run(write_run(tmp_path_factory.mktemp("runs") / "mine", ["no", "yes"], "good", "yes", "good bad film"))


JSON = {"Content-Type": "application/json"}


def client_of(run: Run, limits: Limits | None = None, **options: Any) -> TestClient:
    return TestClient(app_of(run, limits, **options), base_url="http://localhost:8000", raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client(run: Run) -> Iterator[TestClient]:
    with client_of(run) as client:
        yield client


def coded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def test_predictions_are_those_of_predict(run: Run, client: TestClient) -> None:
    texts = ["good film", "bad film", ""]
    answer = client.post("/predict", json={"inputs": [*texts[:2], {"text": ""}]})
    assert answer.status_code == 422
    answer = client.post("/predict", json={"inputs": texts})
    assert answer.status_code == 200
    assert answer.json()["predictions"] == [one.to_dict() for one in predict_given(run, texts)]


def test_files_are_read_as_documents(client: TestClient) -> None:
    answer = client.post("/predict/file", params={"name": "a/b/letter.txt"}, content=b"good film")
    (found,) = answer.json()["predictions"]
    assert (found["where"], found["label"]) == ("letter.txt", "yes")
    file = {"name": "page.html", "bytes": coded(b"<title>good good good</title><p>bad film</p>")}
    mixed = client.post("/predict", json={"inputs": ["good", file, {"text": "bad"}]}).json()["predictions"]
    assert [one["label"] for one in mixed] == ["yes", "no", "no"]
    for name, content, status in (
        ("rows.csv", b"text\ngood\n", 415),
        ("a.txt.gz", b"\x1f\x8b\x08", 415),
        ("a.txt", b"\xff\xfe\xff", 422),
        ("", b"", 422),
    ):
        refused = client.post("/predict/file", params={"name": name}, content=content)
        assert refused.status_code == status, refused.text
        assert "/tmp" not in refused.text


def test_explanations_are_those_of_explain_and_a_page_where_one_is_accepted(run: Run, client: TestClient) -> None:
    answer = client.post("/explain", json={"input": "good film"})
    assert answer.json() == json.loads(json.dumps(explain_given(run, "good film").to_dict()))
    page = client.post("/explain", json={"input": "good film"}, headers={"Accept": "text/html"})
    assert page.headers["content-type"].startswith("text/html")
    assert "Why “yes”?" in page.text
    assert client.post("/explain", json={"input": "good", "of": "perhaps"}).status_code == 422
    file = {"name": "a.txt", "bytes": coded(b"good")}
    assert client.post("/explain", json={"input": file}).json()["of"] == "yes"
    for place in (b"NaN", b"1e400", b"1"):
        answer = client.post("/explain", content=b'{"input": "good", "at": %s}' % place, headers=JSON)
        assert answer.status_code == 422


def test_it_describes_itself(run: Run, client: TestClient) -> None:
    assert client.get("/health").json()["status"] == "ok"
    told = client.get("/metadata").json()
    assert told["labels"] == ["no", "yes"]
    assert told["inputs"] == [{"name": "text", "kind": "text", "required": True}]
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/predict", "/predict/file", "/explain", "/health", "/metadata", "/corrections"} <= paths.keys()


def test_requests_that_wait_are_answered_together_and_as_alone(run: Run) -> None:
    texts = [" ".join(["good"] * (number % 3) + ["bad"] * number) for number in range(1, 25)]
    alone = [one.to_dict() for one in predict_given(run, texts)]
    sizes: list[int] = []

    class Counting(Service):
        def _answer(self, jobs: Any) -> None:
            sizes.append(len(jobs))
            super()._answer(jobs)

    service = Counting(run, Limits())
    futures = [service.predictions(service.rows([text])) for text in texts]
    service.start()
    for future, expected in zip(futures, alone, strict=True):
        (found,) = future.result()
        assert found.to_dict()["label"] == expected["label"]
        assert found.to_dict()["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)
    # With the text that it starts with.
    assert max(sizes) == len(texts) + 1
    service.close()


def test_one_bad_request_does_not_spoil_those_it_is_joined_with(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(run, Limits())
    plain = type(run.task).predict

    def failing(self: Any, run: Run, rows: Any) -> Any:
        if any(row.values["text"] == "broken" for row in rows):
            raise ValueError("broken")
        return plain(self, run, rows)

    monkeypatch.setattr(type(run.task), "predict", failing)
    futures = [service.predictions(service.rows([text])) for text in ("good", "broken", "bad")]
    service.start()
    assert [futures[0].result()[0].to_dict()["label"], futures[2].result()[0].to_dict()["label"]] == ["yes", "no"]
    with pytest.raises(ValueError, match="broken"):
        futures[1].result()
    service.close()


def test_limits(run: Run) -> None:
    with client_of(run, Limits(body=1000, inputs=2, characters=50)) as client:
        for body in ({"inputs": ["good"] * 3}, {"inputs": ["good " * 11]}, {"inputs": ["good " * 300]}):
            answer = client.post("/predict", json=body)
            assert answer.status_code == 413, answer.text

        def pieces() -> Iterator[bytes]:
            yield from [b" " * 400] * 4

        # Without a length.
        assert client.post("/predict", content=pieces(), headers=JSON).status_code == 413
        assert client.post("/predict", content=b"{}", headers=JSON | {"Content-Length": "x"}).status_code == 400


def test_a_full_queue_refuses_and_a_late_answer_is_no_answer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, free = type(run.task).predict, threading.Event()

    def slow(self: Any, run: Run, rows: Any) -> Any:
        free.wait(10)
        return plain(self, run, rows)

    with client_of(run, Limits(queue=3, seconds=0.5)) as client:
        monkeypatch.setattr(type(run.task), "predict", slow)

        def status(text: str) -> int:
            return client.post("/predict", json={"inputs": [text]}).status_code

        # Late work keeps its place until it ends; what waits behind it does not.
        assert [status("good"), client.get("/health").json()["requests"]] == [504, 1]
        with ThreadPoolExecutor(6) as pool:
            found = sorted(pool.map(status, ["good"] * 6))
        assert found == [429] * 4 + [504] * 2
        assert client.get("/health").json()["requests"] == 1
        free.set()
        while client.get("/health").json()["requests"]:
            time.sleep(0.01)
        assert status("good") == 200


def test_tokens_hosts_and_other_sites(run: Run) -> None:
    with client_of(run, token="sécret") as client:
        assert client.get("/health").status_code == client.get("/").status_code == 200
        assert client.get("/metadata").status_code == client.get("/openapi.json").status_code == 401
        for given, status in (("Bearer wrong", 401), ("Basic sécret", 401), ("bearer sécret", 200)):
            headers = {"Authorization": given.encode()}
            assert client.get("/metadata", headers=headers).status_code == status  # type: ignore[arg-type]
    with client_of(run) as client:
        for host, status in (
            ("evil.example", 421),
            ("127.0.0.1:8000", 200),
            ("[::1]:8000", 200),
            ("[", 421),
            ("", 421),
        ):
            assert client.get("/metadata", headers={"Host": host}).status_code == status
        for origin, status in (
            ("http://evil.example", 403),
            ("null", 403),
            ("http://[", 403),
            ("http://localhost:8000", 200),
        ):
            answer = client.post("/predict", json={"inputs": ["good"]}, headers={"Origin": origin})
            assert answer.status_code == status
        policy = client.get("/").headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "http" not in policy


def malformed(draw: random.Random) -> bytes:
    """A body that is nearly right: valid JSON of another form, bytes of a right one changed, or noise."""
    values: list[Any] = [None, True, 7.5, -1e400, 10**40, "", "\ud800", [], {}, ["a"], {"text": {"a": 1}}, [[["x"]]]]
    values += [{"name": "a.png", "bytes": "%%"}, {"name": 7, "bytes": "QQ=="}, {"text": 7}, {"bytes": "QQ=="}]
    values += [{"name": "../../etc/passwd.pdf", "bytes": coded(b"%PDF-")}, {"text": None}, {"text": ["a", 1]}]
    way = draw.randrange(4)
    if way == 0:
        return draw.randbytes(draw.randrange(200))
    given: Any = {"inputs": [draw.choice(values) for _ in range(draw.randrange(3))]}
    if way == 1:
        given = draw.choice(
            [draw.choice(values), {"inputs": draw.choice(values)}, {"inputs": ["good"], "more": 1}, given]
        )
        return json.dumps(given).encode()
    body = bytearray(json.dumps(given if way == 2 else {"inputs": ["good film"]}).encode())
    for _ in range(draw.randrange(1, 4)):
        body[draw.randrange(len(body))] = draw.randrange(256)
    return bytes(body)


def test_bodies_that_are_no_json_say_what_to_send(client: TestClient) -> None:
    body = b'{"inputs": ["good"]}'
    for kind in ({"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}, {}):
        answer = client.post("/predict", content=body, headers=kind)
        assert answer.status_code == 422
        assert "expected JSON with the header Content-Type: application/json" in answer.json()["detail"]
    answer = client.post("/predict", content=b'{"inputs": good}', headers=JSON)
    assert "expected JSON, got something else (Expecting value, character 11)" in answer.json()["detail"]


def test_a_thousand_malformed_bodies_get_one_sentence(run: Run, client: TestClient, capfd: Any) -> None:
    draw, statuses = random.Random(0), list[int]()
    bodies = [malformed(draw) for _ in range(1000)] + [b"[" * 100_000, b'{"inputs": ' + b"[" * 50_000]
    for number, body in enumerate(bodies):
        kinds = (
            "application/json",
            "text/plain",
            "multipart/form-data; boundary=x",
            "application/json; charset=utf-16",
        )
        kind = kinds[0] if number % 10 else kinds[number // 10 % 4]
        path = ("/predict", "/explain", "/corrections", "/predict/file?name=a.pdf")[
            number % 16 % 4 if number % 4 == 0 else 0
        ]
        answer = client.post(path, content=body, headers={"Content-Type": kind})
        statuses.append(answer.status_code)
        # A few of these are right by accident.
        if answer.status_code == 200:
            assert "predictions" in answer.json()
            continue
        assert 400 <= answer.status_code < 500, (body, answer.text)
        detail = answer.json()["detail"]
        assert isinstance(detail, str)
        assert "Traceback" not in detail
        assert len(detail) < 1000
    assert statuses.count(200) < 400
    assert "Traceback" not in capfd.readouterr().err


def test_paths_are_texts(run: Run, client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("good good good", encoding="utf-8")
    answer = client.post("/predict", json={"inputs": [str(tmp_path / "secret.txt"), "hub:imdb", "-", "packages"]})
    assert [one["label"] for one in answer.json()["predictions"]] == ["no"] * 4
    for cell in ({"path": str(tmp_path / "secret.txt")}, {"bytes": coded(b"good")}):
        assert client.post("/predict", json={"inputs": [{"text": cell}]}).status_code == 422
    data = dataclasses.replace(run.recipe.data, file_column="path")
    with client_of(dataclasses.replace(run, recipe=dataclasses.replace(run.recipe, data=data))) as other:
        found = other.post("/predict", json={"inputs": [{"path": str(tmp_path / "secret.txt")}]})
        assert (found.status_code, "'text'" in found.text) == (422, True)
        assert other.post("/predict", json={"inputs": ["good"]}).json()["predictions"][0]["label"] == "yes"
    data = dataclasses.replace(run.recipe.data, file_column="file")
    reading = dataclasses.replace(run, recipe=dataclasses.replace(run.recipe, data=data))
    with client_of(reading) as client:
        sent = {"file": str(tmp_path / "secret.txt")}
        assert client.post("/predict", json={"inputs": [sent]}).status_code == 422
        answer = client.post("/predict", json={"inputs": [sent | {"text": "bad"}]})
        assert answer.json()["predictions"][0]["label"] == "no"


def test_documents_of_other_programs_are_read(client: TestClient) -> None:
    mail = b"Subject: film\nFrom: a@example.org\nTo: b@example.org\n\ngood good good\n"
    (found,) = client.post("/predict/file", params={"name": "mail.eml"}, content=mail).json()["predictions"]
    assert (found["label"], found["where"]) == ("yes", "mail.eml")
    refused = client.post("/predict/file", params={"name": "a.docx"}, content=b"PK\x03\x04 no archive")
    assert refused.status_code == 422
    assert "/tmp" not in refused.text
