# /// script
# dependencies = ["locust==2.47.0"]
# ///
"""locust: eight users for fifteen seconds, whole answers and streams."""

import gevent
from locust import HttpUser, constant, task
from locust.env import Environment
from trial import MODEL, URL, tried

USERS, SECONDS = 8, 15


class Chatter(HttpUser):
    """Asks, and asks again."""

    host = URL
    wait_time = constant(0.1)

    def ask(self, **more):
        return {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Name a tree."}],
            "max_tokens": 16,
            **more,
        }

    @task
    def whole(self):
        with self.client.post("/v1/chat/completions", json=self.ask(), catch_response=True) as answer:
            if not answer.ok or not answer.json()["choices"][0]["message"]["content"]:
                answer.failure(answer.text)

    @task
    def streamed(self):
        with self.client.post(
            "/v1/chat/completions", json=self.ask(stream=True), stream=True, catch_response=True
        ) as answer:
            lines = [line for line in answer.iter_lines() if line]
            if lines[-1] != b"data: [DONE]" or not all(line.startswith(b"data: ") for line in lines):
                answer.failure(str(lines[-1]))


@tried("users at once")
def users():
    environment = Environment(user_classes=[Chatter])
    runner = environment.create_local_runner()
    runner.start(USERS, spawn_rate=USERS)
    gevent.spawn_later(SECONDS, runner.quit)
    runner.greenlet.join()
    total = environment.stats.total
    assert total.num_requests > USERS
    assert total.num_failures == 0, [str(error.error) for error in environment.stats.errors.values()]
