"""`--push`, against a server on this machine that speaks as much of the Hub's protocol as it takes
to commit small files."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from qkvflow.errors import UserError
from qkvflow.runs.export import push


class Hub(BaseHTTPRequestHandler):
    stored: dict[str, bytes]
    asked: list[Any]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        here = f"http://{self.headers['Host']}/owner/name"
        if self.headers["Authorization"] != "Bearer hf_right":
            return self._answer(401, {"error": "who are you?"})
        if self.path == "/api/repos/create":
            self.asked.append(json.loads(body))
            return self._answer(200, {"url": here})
        if self.path == "/api/validate-yaml":
            return self._answer(200, {"errors": [], "warnings": []})
        if self.path == "/api/models/owner/name/preupload/main":
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in json.loads(body)["files"]
            ]
            return self._answer(200, {"files": files})
        assert self.path == "/api/models/owner/name/commit/main"
        for line in body.splitlines():
            each = json.loads(line)
            if each["key"] == "file":
                content = base64.b64decode(each["value"]["content"])
                self.stored[each["value"]["path"]] = content
        commit = "0" * 40
        return self._answer(200, {"commitUrl": f"{here}/commit/{commit}", "commitOid": commit})

    def _answer(self, code: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._answer(404, {"error": "there is nothing here"})

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_directory_is_uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("huggingface_hub")
    Hub.stored, Hub.asked = {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(
        "huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}"
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    files = {
        "README.md": b"---\ntags: [a]\n---\n# A card\n",
        "model.safetensors": bytes(range(256)),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    try:
        assert push(tmp_path, "owner/name").endswith("/owner/name")
        assert Hub.stored == files
        assert (Hub.asked[0]["organization"], Hub.asked[0]["name"]) == ("owner", "name")
        assert "private" in (Hub.asked[0].get("visibility"), *Hub.asked[0])
        monkeypatch.setenv("HF_TOKEN", "hf_wrong")
        with pytest.raises(UserError, match=r"cannot be uploaded to owner/name: .*hf auth login"):
            push(tmp_path, "owner/name")
    finally:
        server.shutdown()
        server.server_close()
