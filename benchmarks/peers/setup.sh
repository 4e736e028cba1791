#!/usr/bin/env bash
# Build the virtual environments of the peers, outside the project's own:
#
#   benchmarks/peers/setup.sh [--home DIR] [sb3] [sf] [puffer]      # default: .peers, all three
#
# An environment that is complete is left alone; an unfinished one is built anew. torch comes first and always as its CPU
# build (a local version, so pip takes that or fails: no CUDA packages). Linux, x86-64; PufferLib needs a C++ compiler.
set -euo pipefail

home=.peers
names=()
while [ $# -gt 0 ]; do
  case "$1" in
    --home) home=$2; shift 2 ;;
    --home=*) home=${1#--home=}; shift ;;
    sb3 | sf | puffer) names+=("$1"); shift ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
[ ${#names[@]} -gt 0 ] || names=(sb3 sf puffer)
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
  pip install "gymnasium==1.4.0" envpool==1.2.5 stable-baselines3==2.9.2 psutil
}

make_sf() { # this peer pins gymnasium < 1.0
  with_torch
  pip install sample-factory==2.1.1
  pip install envpool==1.2.5 "numpy<2" "opencv-python-headless<4.12"
}

make_puffer() { # a source distribution: built without its own C games (they fetch raylib) and without its CUDA kernels
  # (pip says meanwhile that pyro-ppl and heavyball are missing: the last line brings them, without their dependencies.)
  with_torch
  pip install "setuptools<80" wheel cython "numpy<2" ninja
  NO_OCEAN=1 PYTHONPATH="$here/puffer_build" pip install --no-build-isolation --no-deps pufferlib==3.0.0
  pip install "numpy<2" gymnasium==0.29.1 psutil rich rich_argparse imageio pynvml shimmy gym==0.23 "pettingzoo<=1.24.1" \
    scipy scikit-learn pandas wandb neptune "opencv-python-headless<4.12"
  pip install --no-deps pyro-ppl pyro-api opt_einsum tqdm heavyball
}

for name in "${names[@]}"; do
  if [ -e "$home/$name/.complete" ]; then
    echo "$name: already in $home/$name"
    continue
  fi
  echo "$name: building $home/$name"
  rm -rf "${home:?}/$name"
  "$base" -m venv "$home/$name"
  "make_$name"
  "$home/$name/bin/python" -c 'import torch; assert torch.version.cuda is None, "a CUDA build of torch"'
  touch "$home/$name/.complete"
done
