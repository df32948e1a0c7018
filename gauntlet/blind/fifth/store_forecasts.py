"""A small model for each of twenty shops of a sales competition, and before each the features of the table of all shops
made anew (notebooks that wrap everything into one function).

Right: most of the time passes outside of fit, between one fit and the next, in the program's own Python and pandas
(`prepare`), done again for each shop: prepare once, before the loop; nothing about the input or the steps of the fits.
"""

from gauntlet.blind import main
from gauntlet.helpers import keras, np

BACKEND, CAUSE, USES = "tensorflow", "all shops' features are made anew before the fit of each shop", "run"


def train(run):
    import pandas as pd

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    days, shops = 1500, 20
    sales = pd.DataFrame(
        {
            "shop": np.repeat(np.arange(shops), days),
            "day": np.tile(pd.date_range("2024-01-01", periods=days).strftime("%d.%m.%Y"), shops),
            "sold": rng.poisson(40, shops * days).astype("float32"),
        }
    )

    def prepare(table):
        table = table.copy()
        table["date"] = table["day"].apply(lambda day: pd.Timestamp(*map(int, day.split(".")[::-1])))
        table["weekday"] = table["date"].apply(lambda date: date.weekday())
        table["weekend"] = table.apply(lambda row: float(row["weekday"] >= 5), axis=1)
        for lag in (1, 7, 28):
            sold = table.groupby("shop")["sold"]
            table[f"lag{lag}"] = sold.shift(lag)
            table[f"mean{lag}"] = sold.transform(lambda one, lag=lag: one.rolling(lag).mean())
        return table.dropna()

    features = ["weekday", "weekend", "lag1", "lag7", "lag28", "mean1", "mean7", "mean28"]
    layers = keras.layers
    model = keras.Sequential([keras.Input((8,)), layers.Dense(64, "relu"), layers.Dense(64, "relu"), layers.Dense(1)])
    model.compile("adam", "mae")
    start = model.get_weights()
    run.start()
    ready = prepare(sales) if run.does("without") else None
    for shop in range(shops):
        table = prepare(sales) if ready is None else ready
        table = table[table["shop"] == shop]
        model.set_weights(start)
        x, y = table[features].to_numpy("float32"), table["sold"].shift(-1).ffill().to_numpy("float32")
        model.fit(x, y, batch_size=128, epochs=4, verbose=0)


if __name__ == "__main__":
    main(train)
