"""One exported policy behind LitServe, Ray Serve, or nothing but a Starlette endpoint: POST /act
{"obs", "session"} -> {"action"}.

    serve_policy.py litserve|rayserve|starlette ARTIFACT PORT [--batch N]

The ONNX file is the one that ours serves, with one thread; a recurrent state is kept for each
session, in the worker's memory. ``starlette`` reads JSON, answers JSON, and runs no model: what any
server on Starlette and Uvicorn costs at least.
"""

import argparse
import json
import os

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("kind", choices=("litserve", "rayserve", "starlette"))
parser.add_argument("artifact")
parser.add_argument("port", type=int)
parser.add_argument("--batch", type=int, default=1, help="most rows of a batch")


class Model:
    """The graph with its sessions."""

    def __init__(self, artifact):
        import numpy as np
        import onnxruntime

        self.np = np
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            f"{artifact}/policy.onnx", options, providers=["CPUExecutionProvider"]
        )
        with open(f"{artifact}/spec.json") as file:
            about = json.load(file)["artifact"]
        self.state = {
            name: np.zeros((1, *one["shape"]), one["dtype"]) for name, one in about["state"].items()
        }
        self.noise = about["noise"]["fresh"] + about["noise"]["held"]
        self.outputs = [one.name for one in self.session.get_outputs()]
        self.sessions = {}

    def __call__(self, asked):
        """[{"obs", "session"}] -> actions."""
        np, n = self.np, len(asked)
        names = [one["session"] for one in asked]
        states = [self.sessions.get(name, self.state) for name in names]
        given = {
            "obs": np.array([one["obs"] for one in asked], np.float32),
            "first": np.array([name not in self.sessions for name in names]),
            "noise": np.full((n, self.noise), 0.5, np.float32),
            "deterministic": np.ones(n, bool),
            **{name: np.concatenate([state[name] for state in states]) for name in self.state},
        }
        out = dict(zip(self.outputs, self.session.run(None, given)))
        for i, name in enumerate(names):
            self.sessions[name] = {key: out["next" + key[5:]][i : i + 1] for key in self.state}
        return out["action"].tolist()


try:
    import litserve as ls
except ImportError:  # in the environments of the others
    ls = None

if ls is not None:

    class Api(ls.LitAPI):  # at the top of the file, since it goes to another process
        artifact = None

        def setup(self, device):
            self.model = Model(self.artifact)

        def decode_request(self, request):
            return request

        def predict(self, asked):
            return self.model(asked) if isinstance(asked, list) else self.model([asked])[0]

        def unbatch(self, output):
            return output

        def encode_response(self, output):
            return {"action": output}


def litserve(a):
    api = Api(max_batch_size=a.batch, batch_timeout=0.0, api_path="/act")
    api.artifact = a.artifact
    server = ls.LitServer(
        api, accelerator="cpu", workers_per_device=1, fast_queue=bool(os.environ.get("FAST_QUEUE"))
    )
    server.run(
        host="127.0.0.1",
        port=a.port,
        generate_client_file=False,
        log_level="error",
        access_log=False,
    )


def rayserve(a):
    os.environ.update(
        RAY_SERVE_THROUGHPUT_OPTIMIZED="1", RAY_SERVE_LOG_TO_STDERR="0", RAY_USAGE_STATS_ENABLED="0"
    )
    import signal
    import threading

    import ray
    from ray import serve

    class Policy:
        def __init__(self, artifact, batch):
            self.model, self.batch = Model(artifact), batch

        @serve.batch(max_batch_size=max(a.batch, 1), batch_wait_timeout_s=0.0)
        async def together(self, asked):
            return self.model(asked)

        async def __call__(self, request):
            asked = await request.json()
            return {
                "action": await self.together(asked) if self.batch > 1 else self.model([asked])[0]
            }

    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": a.port})
    made = serve.deployment(
        num_replicas=1, max_ongoing_requests=1024, ray_actor_options={"num_cpus": 1}
    )(Policy)
    serve.run(made.bind(a.artifact, a.batch), route_prefix="/act")
    ended.wait()
    serve.shutdown()
    ray.shutdown()


def starlette(a):
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def act(request):
        asked = await request.json()
        return JSONResponse({"action": int(asked["obs"][0] > 0)})

    app = Starlette(routes=[Route("/act", act, methods=["POST"])])
    uvicorn.run(app, host="127.0.0.1", port=a.port, log_level="error", access_log=False)


if __name__ == "__main__":
    a = parser.parse_args()
    {"litserve": litserve, "rayserve": rayserve, "starlette": starlette}[a.kind](a)
