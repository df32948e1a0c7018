/** The keyboard. Letters go by their place on the keyboard, so that every layout has W/A/S/D. */
import { rowAt } from '../lanes/layout.ts';
import { span } from '../math/range.ts';
import type { Timeline } from './timeline.ts';

const STEP = 0.12;

/** Whether `event` should be left to the element it went to. */
function typing(event: KeyboardEvent): boolean {
  const target = event.target as HTMLElement | null;
  return !!target && (/^(input|textarea|select)$/i.test(target.tagName) || target.isContentEditable);
}

export interface KeyTargets {
  surface: () => HTMLElement | null;
  scroller: () => HTMLElement | null;
}

/** True when the key meant something here. */
export function handleKey(timeline: Timeline, event: KeyboardEvent, targets: KeyTargets): boolean {
  const { app } = timeline;
  if (event.key === 'Escape') return escape(timeline);
  if (event.code === 'KeyK' && (event.ctrlKey || event.metaKey)) return done(app.state.set({ finding: true }));
  if (typing(event) || event.ctrlKey || event.metaKey || event.altKey) return false;
  if (event.key === '?') {
    app.state.set({ help: !app.state.get().help });
    return true;
  }
  if (app.state.get().help || app.state.get().finding) return false;
  if (event.code === 'KeyL') return done(app.openList(!app.state.get().list));
  if (app.state.get().list) return false;
  const onSurface = document.activeElement === targets.surface();
  if (onSurface && moveCursor(timeline, event, targets)) return true;
  const onButton = (document.activeElement as HTMLElement | null)?.closest('button, a, summary, [tabindex]:not(.tl-surface)');
  const fast = event.shiftKey ? 3 : 1;
  switch (event.code) {
    case 'KeyW':
      return done(timeline.zoom(0.8 ** fast, undefined, 'keys'));
    case 'KeyS':
      return done(timeline.zoom(1.25 ** fast, undefined, 'keys'));
    case 'KeyA':
      return done(timeline.pan(-STEP * fast, 'keys'));
    case 'KeyD':
      return done(timeline.pan(STEP * fast, 'keys'));
    case 'KeyF':
      return done(timeline.fit());
    case 'KeyM':
      return mark(timeline);
    case 'KeyG':
      return done(app.state.set({ finding: true }));
    case 'KeyE':
      return done(timeline.toEnd());
    case 'KeyT':
      return done(app.state.set({ tables: !app.state.get().tables }));
  }
  switch (event.key) {
    case 'ArrowLeft':
      return onButton ? false : done(timeline.pan(-STEP * fast, 'keys'));
    case 'ArrowRight':
      return onButton ? false : done(timeline.pan(STEP * fast, 'keys'));
    case '+':
    case '=':
      return done(timeline.zoom(0.8, undefined, 'keys'));
    case '-':
    case '_':
      return done(timeline.zoom(1.25, undefined, 'keys'));
    case '0':
      return done(app.look(null));
    case '[':
    case ',':
      return done(timeline.toSpan(-1));
    case ']':
    case '.':
      return done(timeline.toSpan(1));
    case '{':
      return done(timeline.toSpan(-1, true));
    case '}':
      return done(timeline.toSpan(1, true));
    case 'c':
      return done(timeline.copyFix());
    case 'z':
    case 'Backspace':
      return done(app.undo());
  }
  return false;
}

const done = (_: void): true => true;

/** Closes what was opened last; false if nothing is open. */
function escape(timeline: Timeline): boolean {
  const { app } = timeline;
  const state = app.state.get();
  if (state.help) app.state.set({ help: false });
  else if (state.list) app.openList(false);
  else if (timeline.drag) {
    timeline.drag = null;
    timeline.invalidate('overlay');
  } else if (state.measure) app.measureRange(null);
  else if (state.window) app.openWindow(null);
  else if (app.cursor.get().byKeyboard && app.cursor.get().at !== null) app.cursor.set({ at: null });
  else if (app.panelOpen) app.openPanel(false);
  else return false;
  return true;
}

/** Marks the cursor's place; at the second mark the range between both is measured. */
function mark(timeline: Timeline): true {
  const { app, frame } = timeline;
  const { at } = app.cursor.get();
  if (!frame || at === null) return true;
  const from = timeline.marked;
  timeline.marked = from === null ? at : null;
  if (from === null) app.notice('Marked: move the cursor and press m again to measure');
  else {
    const least = 2 ** frame.level;
    const [start, end] = [Math.min(from, at), Math.max(from, at)].map((value) => Math.floor(value / least) * least) as [number, number];
    app.measureRange({ start, end: end + least });
  }
  return true;
}

/** Arrow keys on the focused surface walk a cursor over buckets and lanes. */
function moveCursor(timeline: Timeline, event: KeyboardEvent, targets: KeyTargets): boolean {
  const { app, frame } = timeline;
  if (!frame) return false;
  const cursor = app.cursor.get();
  const { layout } = timeline.shape.get();
  const lanes = layout.rows.filter((row) => row.type === 'lane');
  const index = Math.max(0, lanes.findIndex((row) => row.key === cursor.laneKey));
  const bucket = Math.max(2 ** frame.level, span(frame.view) / frame.width);
  const current = cursor.at ?? (frame.view.start + frame.view.end) / 2;
  let at = current;
  let lane = index;
  switch (event.key) {
    case 'ArrowLeft':
      at -= bucket * (event.shiftKey ? 20 : 1);
      break;
    case 'ArrowRight':
      at += bucket * (event.shiftKey ? 20 : 1);
      break;
    case 'ArrowUp':
      lane = Math.max(0, index - 1);
      break;
    case 'ArrowDown':
      lane = Math.min(lanes.length - 1, index + (cursor.at === null ? 0 : 1));
      break;
    case 'Home':
      at = frame.view.start;
      break;
    case 'End':
      at = frame.view.end - bucket / 2;
      break;
    case 'Enter': {
      if (!timeline.openSpanAt(current)) timeline.openWindowAt(current);
      return true;
    }
    default:
      return false;
  }
  at = Math.min(Math.max(at, frame.bounds.start), frame.bounds.end - bucket / 2);
  if (at < frame.view.start || at > frame.view.end) {
    const by = at < frame.view.start ? at - frame.view.start - span(frame.view) * 0.1 : at - frame.view.end + span(frame.view) * 0.1;
    timeline.show({ start: frame.view.start + by, end: frame.view.end + by }, 'cursor');
  }
  const row = lanes[lane];
  const scroller = targets.scroller();
  if (row && scroller && rowAt(layout, row.top)) {
    if (row.top < scroller.scrollTop) scroller.scrollTop = row.top;
    const bottom = row.top + row.height;
    if (bottom > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = bottom - scroller.clientHeight;
  }
  app.cursor.set({ at, laneKey: row?.key ?? null, byKeyboard: true });
  return true;
}
