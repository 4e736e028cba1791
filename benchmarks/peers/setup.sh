#!/usr/bin/env bash
# Build the virtual environments of the peers, outside the project and outside its own .venv:
#
#   benchmarks/peers/setup.sh [--home DIR] [sb3] [sf] [rllib] [puffer] [torchrl] [cpprb] [trl] [imitation] [litserve] [rayserve]    # default: ~/.cache/equipoise-peers, all
#
# An environment that was made by this very recipe is left alone; one made by an older recipe is brought up to date. torch
# comes first and always as its CPU build (a local version, so pip takes that or fails: no CUDA packages). Python 3.11 (PYTHON
# names another one), Linux, x86-64; PufferLib needs a C++ compiler. All ten take about 14 GB.
set -euo pipefail

home=${XDG_CACHE_HOME:-$HOME/.cache}/equipoise-peers
all=(sb3 sf rllib puffer torchrl cpprb trl imitation litserve rayserve)
names=()
while [ $# -gt 0 ]; do
  case "$1" in
    --home) home=$2; shift 2 ;;
    --home=*) home=${1#--home=}; shift ;;
    sb3 | sf | rllib | puffer | torchrl | cpprb | trl | imitation | litserve | rayserve) names+=("$1"); shift ;;
    *) echo "setup.sh: $1: neither --home DIR nor one of ${all[*]}" >&2; sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
[ ${#names[@]} -gt 0 ] || names=("${all[@]}")
here=$(cd "$(dirname "$0")" && pwd)
base=${PYTHON:-python3.11}
torch="torch==2.13.0+cpu"
index="https://download.pytorch.org/whl/cpu"  # only used for torch, and only if pip's own places lack the CPU build
mkdir -p "$home"
home=$(cd "$home" && pwd)
echo '*' > "$home/.gitignore"

pip() { "$home/$name/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

with_torch() { pip install "$torch" || pip install --extra-index-url "$index" "$torch"; }

make_sb3() {
  with_torch
  pip install "gymnasium==1.4.0" "mujoco==4.0.0" imageio ale-py==0.12.1 envpool==1.2.5 stable-baselines3==2.9.2 \
    opencv-python-headless psutil
}

make_sf() { # this peer pins gymnasium < 1.0, whose HalfCheetah needs a mujoco < 3
  with_torch
  pip install sample-factory==2.1.1
  pip install envpool==1.2.5 "mujoco<3" imageio ale-py==0.12.1 "numpy<2" "opencv-python-headless<4.12"
}

make_rllib() { # it brings a Gymnasium that does not start with mujoco 4
  with_torch
  pip install "$torch" "ray[rllib]==2.60.0" "mujoco==3.3.7" imageio ale-py==0.12.1 opencv-python-headless psutil
}

make_puffer() { # a source distribution: built without its own C games (they fetch raylib) and without its CUDA kernels
  # (pip says meanwhile that pyro-ppl and heavyball are missing: the last line brings them, without their dependencies.)
  with_torch
  pip install "setuptools<80" wheel cython "numpy<2" ninja
  NO_OCEAN=1 PYTHONPATH="$here/puffer_build" pip install --no-build-isolation --no-deps pufferlib==3.0.0
  pip install "numpy<2" gymnasium==0.29.1 psutil rich rich_argparse imageio pynvml shimmy gym==0.23 "pettingzoo<=1.24.1" \
    scipy scikit-learn pandas wandb neptune "opencv-python-headless<4.12" "mujoco<3" ale-py==0.12.1
  pip install --no-deps pyro-ppl pyro-api opt_einsum tqdm heavyball
}

make_torchrl() { # the tensordict that this torchrl was built beside; a newer one conflicts with it
  with_torch
  pip install "$torch" torchrl==0.14.1 "tensordict<0.15" "gymnasium==1.4.0" "mujoco==4.0.0" imageio psutil
}

make_cpprb() { # a wheel for Python 3.11; for the replay alone
  with_torch # as in every environment here; cpprb itself does not need it
  pip install cpprb==11.0.0
}

make_trl() { # and what our own algorithms import, since the comparison of losses runs both in one process
  with_torch
  pip install "$torch" trl==1.16.0 peft==0.21.2 "gymnasium==1.4.0" safetensors jaxtyping numpy
}

make_imitation() { # it pins a Stable-Baselines3 and a Gymnasium of its time, and imports pkg_resources
  with_torch
  pip install "$torch" imitation==1.0.1 "numpy<2" "setuptools<80"
}

make_litserve() { # serves our ONNX files, without torch
  pip install litserve==0.2.19 onnxruntime numpy
}

make_rayserve() { # the same
  pip install "ray[serve]==2.60.0" onnxruntime numpy
}

for name in "${names[@]}"; do
  recipe=$(declare -f "make_$name" with_torch | sha256sum)
  made="$home/$name/.complete"
  if [ -e "$made" ] && [ "$(cat "$made")" = "$recipe" ]; then
    echo "$name: already in $home/$name"
    continue
  fi
  if [ -e "$made" ]; then
    echo "$name: $home/$name is of an older recipe, bringing it up to date"
  else
    echo "$name: building $home/$name"
    rm -rf "${home:?}/$name"
    "$base" -m venv "$home/$name"
  fi
  rm -f "$made"
  "make_$name"
  "$home/$name/bin/python" - << 'END'
import importlib.util

if importlib.util.find_spec("torch"):
    import torch

    assert torch.version.cuda is None, "a CUDA build of torch"
END
  echo "$recipe" > "$made"
done
