"""Ask the gateway from inside the Ray cluster, without HTTP: python examples/ray_serve/ask_by_handle.py MODEL."""

import sys

import ray
from ray import serve

CODES = ["E11.9 Type 2 diabetes", "I10 Essential hypertension", "J45.909 Asthma"]


def main(model: str) -> None:
    ray.init(address="auto", log_to_driver=False)
    gateway = serve.get_app_handle("maskfeed")
    answer = gateway.answer.remote(
        "/v1/chat/completions",
        {
            "model": model,
            "messages": [{"role": "user", "content": "The patient's blood pressure is 170/100. Which code?"}],
            "candidates": CODES,
        },
    ).result(timeout_s=120)
    print(answer["maskfeed"]["candidate"])


if __name__ == "__main__":
    main(sys.argv[1])
