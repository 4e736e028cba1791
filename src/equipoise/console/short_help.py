"""The short help of ``train`` and ``tune``: the commonest options by section, and its end."""

from __future__ import annotations

Short = dict[str, dict[str, str]]

SHORT: Short = {  # the commonest options, a line each; "": the option's own help
    "Train a policy on ENV; Ctrl-C saves and stops": {
        "ENV": "Gymnasium id, module:callable, device:NAME or a task",
        "--algorithm NAME": "Algorithm; see 'equipoise algorithms' (default: ppo)",
        "--steps N": "",
        "--stop-at RETURN": "",
        "--seed N": "",
        "--seeds N": "Number of runs, with a seed each",
        "--init-from DIR": "",
        "--config FILE": "",
    },
    "Algorithm": {
        "--lr X": "Learning rate (default: the algorithm's)",
        "--gamma X": "Discount factor (default: the algorithm's)",
        "--unroll T": "",
        "--batch B": "",
        "--reward SUM": "",
        "--set KEY=VALUE": "Any other setting, such as algorithm.core=lstm",
        "--no-recipe": "Use no tuned settings for this env",
    },
    "Machine": {
        "--on serial|process|ray": "",
        "--actors N|auto": "",
        "--envs-per-actor N|auto": "",
        "--max-lag K|none": "",
        "--device DEVICE": "",
    },
    "Output": {
        "--out DIR|URL": "New directory (default: runs/ENV-ALGORITHM-SEED-TIME)",
        "--evaluate-every STEPS": "",
        "--evaluate-episodes N": "",
        "--report-to KIND:NAME": "Experiment tracker, such as wandb:PROJECT",
        "--dry-run": "",
        "-q, --quiet": "",
    },
}
TEXT = {
    "Text": {
        "--model MODEL": "",
        "--reward MODULE:FUNCTION": "Rewards, as module:function[,...] or run:DIR",
        "--max-completion-length N": "",
        "--lora RANK": "",
        "--placement PLAN": "",
        "--engine torch|vllm:URL": "",
    }
}
SHORT_END = """With --algorithm NAME, --help lists its fields, which are options.
--help-all lists each option and each setting.

Examples:
  equipoise train CartPole-v1 --stop-at 475
  equipoise train my_package.envs:make_env --algorithm sac --gamma 0.98"""

SHORT_OF_TUNE: Short = {
    "Search for the settings of ENV with the highest score; Ctrl-C saves and stops": {
        "ENV": "Gymnasium id, module:callable, device:NAME or a task",
        "--space KEY=VALUES": "",
        "--trials N": "",
        "--strategy NAME": "",
        "--strategy-set KEY=VALUE": "",
        "--confirm N": "",
    },
    "Each trial": {
        "--algorithm NAME": "Algorithm; see 'equipoise algorithms' (default: ppo)",
        "--steps N": "",
        "--seed N": "",
        "--set KEY=VALUE": "Any other setting, such as algorithm.core=lstm",
        "--no-recipe": "Use no tuned settings for this env",
        "--config FILE": "",
        "--evaluate-episodes N": "",
    },
    "Machine": {"--jobs J": "", "--on serial|process": "", "--max-lag K|none": ""},
    "Output": {"--out DIR": "", "-q, --quiet": ""},
}
SHORT_END_OF_TUNE = """--help-all lists each option and each setting of a trial.

Examples:
  equipoise tune CartPole-v1 --space optimizer.learning_rate=log:1e-4..1e-2
  equipoise tune Acrobot-v1 --trials 40 --jobs 2 --strategy median \\
    --space optimizer.learning_rate=log:1e-5..1e-2 --space algorithm.gamma=0.95,0.99
  equipoise tune strategies          the strategies and their settings"""
