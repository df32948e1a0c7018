"""Train a small image model three times, each time held back by something else, and say by what.

    python demo/train.py             # train, print the report, serve TensorBoard on loopback
    DEMO_SERVE=0 python demo/train.py   # train, print the report, end

With a GPU that TensorFlow can use, the model trains there; without one, on the CPU.
"""

import argparse
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # the doctor says what of it matters

HERE = Path(__file__).resolve().parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--log-dir", type=Path, default=HERE / "logs", help="where runs go")
    parser.add_argument("--steps", type=int, default=240, help="training steps of each act")
    parser.add_argument("--batch", type=int, default=32, help="pictures a batch")
    parser.add_argument("--recorded", type=Path, default=HERE / "recorded", help="runs of a GPU to show beside them")
    parser.add_argument("--redact", action="store_true", help="record no names of this machine")
    parser.add_argument("--no-serve", action="store_true", help="end after the report")
    args = parser.parse_args()
    if args.steps < 30:
        parser.error("--steps must be at least 30: below that there is nothing to see")
    return args


@contextmanager
def quiet_stderr():
    """Hold back what is written to standard error, by C++ too, unless the block fails."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(kept, held.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)


def build_model():
    import keras
    from images import CLASSES, SIZE

    keras.utils.set_random_seed(11)
    model = keras.Sequential(
        [
            keras.layers.Input((SIZE, SIZE, 3)),
            keras.layers.Conv2D(24, 3, activation="relu", name="conv_1"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(48, 3, activation="relu", name="conv_2"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu", name="conv_3"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(len(CLASSES), name="shape"),
        ],
        name="shapes",
    )
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return model


def heavy_callback(folder: Path, out: Path):
    import keras
    import numpy as np
    from images import files, load

    class ContactSheet(keras.callbacks.Callback):
        """Writes a sheet of the pictures the model is least sure of, after every epoch.

        Home-made callbacks like this one hold up the GPU in many trainings: every picture is read
        and predicted one at a time.
        """

        def on_epoch_end(self, epoch, logs=None):
            paths, _ = files(folder)
            pictures = [load(path) for path in paths[:200]]
            logits = np.concatenate([self.model(p[None], training=False) for p in pictures])
            doubt = np.ptp(logits, axis=1).argsort()[:16]
            rows = np.stack([pictures[i] for i in doubt]).reshape(4, 4, *pictures[0].shape)
            sheet = np.concatenate(np.concatenate(rows, axis=1), axis=1)
            out.mkdir(parents=True, exist_ok=True)
            keras.utils.save_img(out / f"least-sure-{epoch + 1}.png", sheet)

    return ContactSheet()


def acts(folder: Path, out: Path, steps: int, batch: int):
    """(name, what is wrong, train pipeline, fit arguments) of each act."""
    from images import pipeline, slow_pipeline

    third = steps // 3
    middle = slow_pipeline(folder, batch, third)
    yield ("1-healthy", "nothing is wrong", pipeline(folder, batch, steps), {})
    yield (
        "2-slow-map",
        f"from step {third} to {2 * third} an augmentation in Python, under the interpreter lock",
        pipeline(folder, batch, third).concatenate(middle).concatenate(pipeline(folder, batch, third)),
        {},
    )
    yield (
        "3-long-validation",
        "a validation twice as long as the training, and a callback that takes its time",
        pipeline(folder, batch, third),
        {
            "epochs": 3,
            "validation_data": pipeline(folder, batch, 2 * steps // 3),
            "callbacks": [heavy_callback(folder, out)],
        },
    )


def train(log_dir: Path, steps: int, batch: int, redact: bool) -> None:
    with quiet_stderr():  # TensorFlow's first lines come before its log level counts
        import tensorflow as tf
    from images import draw

    from gpu_util_callback import GpuUtilCallback

    devices = tf.config.list_physical_devices("GPU")
    print(f"Training on {'the GPU' if devices else 'the CPU: TensorFlow sees no GPU here'}.")
    folder = draw(HERE / "logs" / "pictures", count=2000)
    for act in log_dir.glob("[123]-*/plugins/gpu_utilization"):
        shutil.rmtree(act.parent.parent)  # what this demo recorded last time
    for number, (name, wrong, dataset, fit) in enumerate(acts(folder, log_dir / "sheets", steps, batch), 1):
        print(f"\nAct {number} of 3, {name}: {wrong}.")
        model = build_model()
        callbacks = [*fit.pop("callbacks", []), GpuUtilCallback(str(log_dir / name), job=name, redact=redact)]
        model.fit(dataset, shuffle=False, callbacks=callbacks, **fit)


def main() -> int:
    args = arguments()
    sys.path.insert(0, str(HERE))
    train(args.log_dir, args.steps, args.batch, args.redact)

    from recorded_runs import RECORDED, show_recorded

    from gpu_util_callback.cli import main as gpu_util

    print()
    shutil.rmtree(args.log_dir / RECORDED, ignore_errors=True)
    code = gpu_util(["report", str(args.log_dir)])
    for line in show_recorded(args.recorded, args.log_dir / RECORDED):
        print(line)
    if code or args.no_serve or os.environ.get("DEMO_SERVE") == "0":
        return code
    from serve import serve

    return serve(args.log_dir)


if __name__ == "__main__":
    sys.exit(main())
