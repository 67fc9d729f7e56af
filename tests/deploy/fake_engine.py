"""Stands where an engine's module would be: listens at --port and answers as vLLM does, with a given tau."""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

DRAFTS = {"drafts": 0, "accepted": 0.0}
TAU = float(os.environ["FAKE_TAU"])


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._reply(json.dumps({"data": [{"id": "fake"}]}))
        elif self.path == "/metrics":
            drafts, accepted = DRAFTS["drafts"], DRAFTS["accepted"]
            self._reply(
                f"vllm:spec_decode_num_drafts_total {drafts}.0\n"
                f"vllm:spec_decode_num_accepted_tokens_total {accepted:.1f}\n"
            )
        elif self.path == "/health":
            self._reply("")
        else:
            self._reply("", 404)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        DRAFTS["drafts"] += 10
        DRAFTS["accepted"] += 10 * (TAU - 1)
        self._reply(json.dumps({"choices": [{"text": "", "token_ids": [1]}]}))

    def log_message(self, *arguments: object) -> None:
        pass

    def _reply(self, text: str, status: int = 200) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())


with open(os.environ["FAKE_ARGUMENTS"], "w") as file:
    json.dump(sys.argv[1:], file)
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
