# Equipoise in a container, with torch for the CPU: docker build -t equipoise . && docker run --rm -it --shm-size=1g equipoise train CartPole-v1
FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /dist .

FROM python:3.12-slim
COPY --from=build /dist/*.whl /tmp/
RUN pip install --no-cache-dir torch --index-url https://download.pytorch.org/whl/cpu \
 && pip install --no-cache-dir "$(ls /tmp/*.whl)[tensorboard,atari,mujoco,minigrid,pettingzoo,plot,serve]" && rm /tmp/*.whl
RUN useradd --create-home rl
USER rl
WORKDIR /home/rl
ENTRYPOINT ["equipoise"]
CMD ["--help"]
