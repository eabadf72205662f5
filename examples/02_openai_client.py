"""The OpenAI client against a maskfeed gateway: one more field in the request, one more object in the answer.

`python examples/02_openai_client.py http://127.0.0.1:8080`
"""

import sys

from openai import OpenAI


def main(gateway_url: str) -> None:
    """Ask for one of four tools."""
    client = OpenAI(base_url=f"{gateway_url}/v1", api_key="none")
    model = client.models.list().data[0].id
    response = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Delete the user with id 7. Which tool do you call?"}],
        temperature=0,
        extra_body={
            "candidates": [
                {"value": "get_user", "id": 101},
                {"value": "get_users", "id": 102},
                {"value": "delete_user", "id": 103},
                "list_invoices",  # an id is optional
            ]
        },
    )
    report = (response.model_extra or {})["maskfeed"]
    print(f"answer: {response.choices[0].message.content}")
    print(f"id {report['id']}, position {report['index']} in the list, compiled in {report['compile_ms']} ms")


if __name__ == "__main__":
    main(sys.argv[1])
