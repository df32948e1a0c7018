/** A value that can be watched. Small on purpose: get, set, subscribe. */

export type Listener = () => void;

export interface Store<T> {
  get(): T;
  /** Merges `patch`; listeners run only when a field really changed. */
  set(patch: Partial<T>): void;
  subscribe(listener: Listener): () => void;
}

/** A store that begins with `initial`. */
export function createStore<T extends object>(initial: T): Store<T> {
  let value = initial;
  const listeners = new Set<Listener>();
  return {
    get: () => value,
    set(patch) {
      const keys = Object.keys(patch) as (keyof T)[];
      if (keys.every((key) => Object.is(value[key], patch[key]))) return;
      value = { ...value, ...patch };
      for (const listener of [...listeners]) listener();
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}
