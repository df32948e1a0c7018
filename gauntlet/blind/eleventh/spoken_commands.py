"""Spoken commands after the tutorial on audio: clips of three seconds are read and made into mel spectrograms by
`Dataset.map`; of the tutorial's `cache`, `AUTOTUNE` and `prefetch` none was copied.

Right: the input: a sequential `map` reads and transforms each clip anew in each epoch, and nothing is fetched ahead:
`cache()` behind the map, as nothing in it is random; `num_parallel_calls` and `prefetch` are half an answer on two
cores; not the network, not the batch size, and not the files, which are in the disk's cache.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, keras, np, tf

BACKEND, CAUSE, USES = "tensorflow", "a sequential map makes spectrograms of all clips in each epoch", "callback"
REMEDY = "num_parallel_calls and prefetch"


def spoken(path, count):
    """Write so many clips of three seconds, and return their files."""
    generator = np.random.default_rng(0)
    files = []
    for number in range(count):
        clip = tf.audio.encode_wav(generator.uniform(-0.9, 0.9, (48_000, 1)).astype("float32"), 16_000)
        files.append(str(path / f"{number}.wav"))
        tf.io.write_file(files[-1], clip)
    return files


def train(run):
    keras.utils.set_random_seed(0)
    files = spoken(folder(), 480)
    commands = np.arange(len(files)) % 8
    to_mel = tf.signal.linear_to_mel_weight_matrix(64, 513, 16_000, 60, 7600)

    def spectrogram(file, command):
        clip = tf.audio.decode_wav(tf.io.read_file(file), 1, 48_000).audio[:, 0]
        powers = tf.abs(tf.signal.stft(clip, 1024, 160)) ** 2
        return tf.math.log(powers @ to_mel + 1e-6)[..., None], command

    clips = tf.data.Dataset.from_tensor_slices((files, commands))
    if run.does("without"):
        clips = clips.map(spectrogram).cache().shuffle(480).batch(16).prefetch(tf.data.AUTOTUNE)
    elif run.does("remedy"):
        clips = clips.shuffle(480).map(spectrogram, num_parallel_calls=tf.data.AUTOTUNE)
        clips = clips.batch(16).prefetch(tf.data.AUTOTUNE)
    else:
        clips = clips.shuffle(480).map(spectrogram).batch(16)

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((294, 64, 1)),
            *(layers.Resizing(32, 32), layers.BatchNormalization()),
            *(layers.Conv2D(16, 3, activation="relu"), layers.Conv2D(16, 3, activation="relu")),
            *(layers.MaxPooling2D(), layers.Flatten(), layers.Dense(32, "relu"), layers.Dense(8, "softmax")),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(clips, epochs=12, verbose=2, callbacks=run.callbacks)


if __name__ == "__main__":
    main(train)
