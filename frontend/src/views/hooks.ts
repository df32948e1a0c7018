/** Preact's view of the stores. */
import { useEffect, useReducer, useRef } from 'preact/hooks';
import type { App, AppState } from '../state/app.ts';
import type { Store } from '../state/store.ts';
import type { Timeline } from '../timeline/timeline.ts';

export interface Tab {
  app: App;
  timeline: Timeline;
  /** Asks the server again at once. */
  refresh: () => void;
}

let tab: Tab;

/** There is one tab in a page: said once, before anything is shown. */
export const provideTab = (value: Tab): void => void (tab = value);

export const useTab = (): Tab => tab;

/** Renders again only when the selected part of the store changes. */
export function useSelect<T, S>(store: Store<T>, select: (value: T) => S): S {
  const [, again] = useReducer((n: number) => n + 1, 0);
  const selected = select(store.get());
  const latest = useRef(selected);
  const selector = useRef(select);
  latest.current = selected;
  selector.current = select;
  useEffect(() => {
    const check = (): void => {
      if (!Object.is(selector.current(store.get()), latest.current)) again(undefined as never);
    };
    check();
    return store.subscribe(check);
  }, [store]);
  return selected;
}

export const useApp = <S>(select: (state: AppState) => S): S => useSelect(useTab().app.state, select);

/** Closes a popover on Escape and on a click elsewhere. */
export function useDismiss(open: boolean, close: () => void, inside: { current: HTMLElement | null }): void {
  useEffect(() => {
    if (!open) return;
    const key = (event: KeyboardEvent): void => {
      if (event.key !== 'Escape') return;
      event.stopPropagation();
      close();
      inside.current?.querySelector<HTMLElement>('[aria-expanded]')?.focus();
    };
    const pointer = (event: Event): void => {
      if (!inside.current?.contains(event.target as Node)) close();
    };
    addEventListener('keydown', key, true);
    addEventListener('pointerdown', pointer, true);
    return () => {
      removeEventListener('keydown', key, true);
      removeEventListener('pointerdown', pointer, true);
    };
  }, [open]);
}
