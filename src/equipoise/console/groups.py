"""The groups of ``equipoise --help``, and one line about each command."""

from __future__ import annotations

GROUPS = {
    "Train": {
        "train": "Train a policy on an env, or a model on text",
        "tune": "Search for the best settings, by many runs",
        "resume": "Continue a run from its newest checkpoint",
        "proxy": "Answer the calls of agents, and learn from them",
        "evaluate": "Play fresh episodes with the policy of a run",
        "generate": "Answer prompts with the model of a run",
        "collect": "Save episodes of a policy as a data set",
        "feedback": "Keep preferences of people between clips or texts",
        "clips": "Show people what a policy does: clips for a store",
        "label": "Serve a page on which people compare clips or texts",
    },
    "Look": {
        "runs": "List the runs of a folder, or remove some",
        "watch": "Show runs on a live page in a browser",
        "report": "Write an HTML page about runs",
        "plot": "Draw learning curves of runs",
        "study": "Train a benchmark suite, and compare its scores",
    },
    "Speed": {
        "whatif": "Predict the speed of a run with other settings",
        "probe": "Measure the changes that may help a run most",
        "forecast": "Predict the speed of a run on other machines",
        "trace": "Write the last seconds of each worker for Perfetto",
    },
    "Ship": {
        "export": "Write a policy that acts without torch",
        "registry": "Keep versions of policies, with aliases",
        "serve": "Serve a policy over HTTP",
    },
    "Envs": {
        "envs": "List the envs that are installed here",
        "algorithms": "List the algorithms",
        "recipes": "List the tuned settings, by env",
        "check": "Look for mistakes in an env before training",
        "reproduce": "Repeat what an env did up to its failure",
    },
    "Tools": {
        "doctor": "Print the machine and the versions for a bug report",
        "chaos": "Inject faults into test runs and check their data",
        "completion": "Print the completion script of a shell",
        "help": "Print the help of a command",
        "version": "Print the version",
    },
}
