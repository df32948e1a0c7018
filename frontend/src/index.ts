/** Entry point: TensorBoard imports this module in the tab's iframe and calls `render()`. */
import { h, render as mount } from 'preact';
import { isOffline, isTable, openAtFirst } from './api/client.ts';
import { App, type AppState } from './state/app.ts';
import { addressWindow, decodeHash, encodeHash, type LinkState } from './state/hash.ts';
import { Loader } from './state/loader.ts';
import { followTheme } from './theme/theme.ts';
import { handleKey } from './timeline/keys.ts';
import { Timeline } from './timeline/timeline.ts';
import { Root } from './views/app.tsx';
import { provideTab } from './views/hooks.ts';

/** Builds the tab, or the report in one file, and begins to load. */
export function render(): void {
  const address = addressWindow();
  const link = decodeHash(address.location.hash);
  const [id = null, ...compare] = openAtFirst;
  const app = new App({ ...link, ...(link.id === null ? { id, compare } : {}), list: link.list || isTable });
  const timeline = new Timeline(app);
  const loader = new Loader(app, (id, before, after) => timeline.dataGrew(id, before, after));

  document.title = 'GPU Utilization';
  document.documentElement.lang ||= 'en';
  const root = document.createElement('div');
  root.id = 'gpu-utilization';
  const begin = (): void => {
    document.body.append(root);
    followTheme(() => timeline.themeChanged());
    provideTab({ app, timeline, refresh: () => void loader.refresh() });
    mount(h(Root, null), root);
    takeKeys();
  };
  if (isOffline) begin();
  else loadStyle(begin);

  app.state.subscribe(writeLink(app, address));
  address.addEventListener('hashchange', () => readLink(app, address, () => void loader.refresh()));
  addEventListener('keydown', (event) => {
    const find = (selector: string) => (): HTMLElement | null => document.querySelector<HTMLElement>(selector);
    if (handleKey(timeline, event, { surface: find('.tl-surface'), scroller: find('.tl-scroll') })) event.preventDefault();
  });
  document.addEventListener('pointerenter', takeKeys);
  addEventListener('resize', () => timeline.invalidate());
  loader.start();
}

/** Unstyled content would flash, and the canvas reads its colours from the stylesheet: `then` waits for it. */
function loadStyle(then: () => void): void {
  const sheet = document.createElement('link');
  sheet.rel = 'stylesheet';
  sheet.href = new URL(`./style.css${new URL(import.meta.url).search}`, import.meta.url).href;
  sheet.addEventListener('load', then, { once: true });
  sheet.addEventListener('error', then, { once: true });
  document.head.append(sheet);
}

/** Keys reach this frame only after it has the focus; a field one types in elsewhere keeps it. */
function takeKeys(): void {
  let typing = false;
  try {
    typing = /^(input|textarea|select)$/i.test(parent.document.activeElement?.tagName ?? '');
  } catch {
    // another origin around us: it decides
  }
  if (!typing && !document.hasFocus()) window.focus();
}

/**
 * Writes the deep link a moment after the last change; `replaceState` keeps the frame as it is. From the
 * table into a run and back, and from one finding or profiler window to the next, are steps of their own,
 * which the browser's button undoes.
 */
function writeLink(app: App, address: Window): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let latest = app.state.get();
  const forget = (): void => {
    clearTimeout(timer);
    timer = undefined;
  };
  // One has gone back: what the address says now is to be shown, and nothing else is to be written over it.
  address.addEventListener('popstate', forget);
  const write = (): void => {
    timer = undefined;
    if (innerHeight === 0) return; // another tab of TensorBoard's is shown: the hash is its own
    const { hash, pathname, search } = address.location;
    const next = encodeHash(hash, latest);
    if (next === hash) return;
    const step = isStep(decodeHash(hash), latest) ? 'pushState' : 'replaceState';
    // A bare hash would resolve against <base>, which is not where the page is.
    address.history[step](address.history.state, '', pathname + search + next);
  };
  return () => {
    const now = app.state.get();
    const [before, pending] = [latest.list, timer !== undefined];
    forget();
    if (now.list === before) {
      latest = now;
      timer = setTimeout(write, 80);
      return;
    }
    // What one leaves is to be found again as it was left.
    if (pending && decodeHash(address.location.hash).list === before) write();
    latest = now;
    write();
  };
}

/** Whether a person went from one place of the tab to another; what opens by itself is no step. */
const isStep = (before: LinkState, now: AppState): boolean =>
  before.list !== now.list || (now.touched && before.id === now.id && (before.selected !== now.selected || before.window?.number !== now.window?.number));

/** Shows what a link says that was opened into a tab that is already running; `refresh` asks the server for it. */
function readLink(app: App, address: Window, refresh: () => void): void {
  const { hash } = address.location;
  if (!hash.startsWith('#gpu_utilization&') || !hash.includes('p.gpu_utilization.id=') || hash === encodeHash(hash, app.state.get())) return;
  const link = decodeHash(hash);
  if (link.id) app.choose(link.id);
  const { sort, search, cause } = app.state.get();
  app.state.set({ ...link, ...(link.list ? {} : { sort, search, cause }), idSaid: true, panel: link.selected !== null, collapsed: new Set(link.collapsed), hidden: new Set(link.hidden) });
  refresh();
}

// A report in one file has nobody to call `render()`.
if (isOffline) render();
