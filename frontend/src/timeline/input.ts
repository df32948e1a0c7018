/** Mouse, trackpad and touch on the timeline. Plain wheels scroll; Ctrl or Cmd zooms, Shift pans. */
import type { WindowInfo } from '../api/types.ts';
import { padded, span, toPixel, toValue, zoomAt, type Range } from '../math/range.ts';
import { isLoss } from '../lanes/time.ts';
import { rowAt } from '../lanes/layout.ts';
import { AXIS_TOP, LANE_TOP, windowAt } from './head.ts';
import type { Timeline } from './timeline.ts';

const CLICK_PIXELS = 4;
/** Steps this wide can be clicked one by one. */
const STEP_PIXELS = 6;
/** A finger that rests this long measures instead of panning. */
const HOLD_MS = 450;
/** Two fingers nearer than this zoom as if they were so far apart, in pixels. */
const NEAREST_FINGERS = 24;

type Mode = 'measure' | 'pan' | 'zoom' | 'brush' | 'brush-move' | 'brush-start' | 'brush-end' | 'pinch';

/** The cursor over the brush; at its ends it is resized. */
const BRUSH_CURSORS: Partial<Record<Mode, string>> = { brush: 'crosshair', 'brush-move': 'grab' };

interface Drag {
  mode: Mode;
  id: number;
  x: number;
  y: number;
  moved: boolean;
  view: Range;
  from: number;
}

/** Listens on the lanes' surface and on the head; returns a function that stops listening. */
export function attachPointer(timeline: Timeline, surface: HTMLElement, head: HTMLElement): () => void {
  const { app } = timeline;
  const touches = new Map<number, number>();
  let drag: Drag | null = null;
  let hold: ReturnType<typeof setTimeout> | undefined;
  let pinch: { view: Range; first: number; second: number } | null = null;

  const at = (event: PointerEvent | MouseEvent): { x: number; y: number; inHead: boolean } => {
    const inHead = event.currentTarget === head;
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top, inHead };
  };

  const hover = (event: PointerEvent, x: number, y: number, inHead: boolean): void => {
    const { frame } = timeline;
    if (!frame) return;
    if (inHead && y < AXIS_TOP - 1) {
      app.cursor.set({ at: null, laneKey: null });
      app.state.set({ lit: null });
      head.style.cursor = BRUSH_CURSORS[brushMode(timeline, x)] ?? 'ew-resize';
      return;
    }
    const time = inHead ? timeline.timeAt(x, y) : null;
    app.state.set({ lit: time && isLoss(time.part) ? time.part : null });
    if (inHead) head.style.cursor = (time && isLoss(time.part)) || windowUnder(timeline, x, y) ? 'pointer' : 'crosshair';
    const { layout } = timeline.shape.get();
    const scroll = surface.parentElement?.parentElement?.scrollTop ?? 0;
    const row = inHead ? null : rowAt(layout, y + scroll);
    let laneKey = row?.type === 'lane' ? row.key : null;
    if (inHead) laneKey = y < LANE_TOP ? 'axis' : `head ${Math.round(x)} ${Math.round(y)}`;
    app.cursor.set({
      at: toValue(frame.view, frame.width, x),
      laneKey,
      pixel: x,
      x: event.clientX,
      y: event.clientY,
      byKeyboard: false,
    });
  };

  const down = (event: PointerEvent): void => {
    const { frame } = timeline;
    if (!frame) return;
    const { x, y, inHead } = at(event);
    if (event.pointerType === 'touch') {
      touches.set(event.pointerId, x);
      if (touches.size === 2) {
        const [first, second] = [...touches.values()] as [number, number];
        pinch = { view: frame.view, first, second };
        drag = null;
        return;
      }
    }
    if (event.button > 1) return;
    const target = event.currentTarget as HTMLElement;
    target.setPointerCapture(event.pointerId);
    let mode: Mode = event.shiftKey || event.button === 1 || event.pointerType === 'touch' ? 'pan' : 'measure';
    if (inHead && y < AXIS_TOP - 1) mode = brushMode(timeline, x);
    else if (inHead && y < LANE_TOP && mode === 'measure') mode = 'zoom';
    const from = toValue(mode.startsWith('brush') ? frame.bounds : frame.view, frame.width, x);
    drag = { mode, id: event.pointerId, x, y, moved: false, view: frame.view, from };
    clearTimeout(hold);
    if (event.pointerType === 'touch' && mode === 'pan')
      hold = setTimeout(() => {
        if (!drag || drag.moved) return;
        drag.mode = 'measure';
        navigator.vibrate?.(15);
        timeline.drag = { start: from, end: from };
        timeline.invalidate('overlay');
      }, HOLD_MS);
    if (event.button === 1) event.preventDefault();
  };

  const move = (event: PointerEvent): void => {
    const { frame } = timeline;
    if (!frame) return;
    const { x, y, inHead } = at(event);
    if (touches.has(event.pointerId)) touches.set(event.pointerId, x);
    if (pinch && touches.size === 2) {
      const [first, second] = [...touches.values()] as [number, number];
      timeline.show(pinchView(pinch, first, second, frame.width), 'pinch');
      return;
    }
    if (!drag || drag.id !== event.pointerId) {
      if (event.pointerType !== 'touch') hover(event, x, y, inHead);
      return;
    }
    if (!drag.moved && Math.abs(x - drag.x) < CLICK_PIXELS) return;
    // Escape let go of it.
    if (drag.moved && !timeline.drag && /measure|zoom/.test(drag.mode)) return;
    drag.moved = true;
    dragTo(timeline, drag, x);
    if (!drag.mode.startsWith('brush')) hover(event, x, y, inHead);
  };

  const up = (event: PointerEvent): void => {
    touches.delete(event.pointerId);
    clearTimeout(hold);
    if (touches.size < 2) pinch = null;
    const { frame } = timeline;
    const done = drag;
    drag = null;
    if (!frame || !done || done.id !== event.pointerId) return;
    const { x, y, inHead } = at(event);
    const dragged = timeline.drag;
    timeline.drag = null;
    timeline.invalidate('overlay');
    if (event.type === 'pointercancel') return;
    if (done.moved) {
      if (done.mode === 'measure' && dragged) app.measureRange(ordered(dragged));
      if (done.mode === 'zoom' && dragged) timeline.show(ordered(dragged));
      return;
    }
    click(timeline, done, x, y, inHead);
    if (event.pointerType === 'touch') hover(event, x, y, inHead);
  };

  const leave = (): void => {
    if (drag) return;
    app.cursor.set({ at: null, laneKey: null });
    app.state.set({ lit: null });
  };

  const wheel = (event: WheelEvent): void => {
    const { frame } = timeline;
    if (!frame) return;
    const { x } = at(event);
    const unit = [1, 16, frame.width][event.deltaMode] ?? 1; // pixels of one: a pixel, a line, a page
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      const factor = Math.exp(Math.max(-60, Math.min(60, event.deltaY * unit)) * 0.006);
      timeline.zoom(factor, toValue(frame.view, frame.width, x), 'wheel');
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      timeline.pan((((event.deltaX || event.deltaY) * unit) / frame.width) * 1, 'wheel-pan');
    }
  };

  const double = (event: MouseEvent): void => {
    const { frame } = timeline;
    if (!frame) return;
    const { x, y, inHead } = at(event);
    const hole = inHead ? timeline.timeAt(x, y)?.hole : null;
    const window = inHead ? windowUnder(timeline, x, y) : null;
    if (hole) timeline.show(padded({ start: toValue(frame.view, frame.width, hole.x0), end: toValue(frame.view, frame.width, hole.x1) }, 0.1));
    else if (window) timeline.showWindow(window);
    else if (inHead && y < AXIS_TOP - 1) app.look(null);
    else timeline.zoom(1 / 3, toValue(frame.view, frame.width, x), 'jump');
  };

  const detached = new AbortController();
  const options = { passive: false, signal: detached.signal };
  for (const element of [surface, head]) {
    element.addEventListener('pointerdown', down, options);
    element.addEventListener('pointermove', move, options);
    element.addEventListener('pointerup', up, options);
    element.addEventListener('pointercancel', up, options);
    element.addEventListener('pointerleave', leave, options);
    element.addEventListener('wheel', wheel, options);
    element.addEventListener('dblclick', double, options);
  }
  return () => detached.abort();
}

const ordered = (range: Range): Range => ({
  start: Math.min(range.start, range.end),
  end: Math.max(range.start, range.end),
});

/** The view after two fingers have moved, so that the values under them stay; all places in pixels. */
function pinchView(pinch: { view: Range; first: number; second: number }, first: number, second: number, width: number): Range {
  const before = Math.max(NEAREST_FINGERS, Math.abs(pinch.second - pinch.first));
  const after = Math.max(NEAREST_FINGERS, Math.abs(second - first));
  const middle = toValue(pinch.view, width, (pinch.first + pinch.second) / 2);
  const zoomed = zoomAt(pinch.view, middle, before / after);
  const drift = (((first + second) / 2 - (pinch.first + pinch.second) / 2) / width) * span(zoomed);
  return { start: zoomed.start - drift, end: zoomed.end - drift };
}

/** What a drag does that begins at pixel `x` of the brush: a new view, moving it, or moving one of its ends. */
function brushMode(timeline: Timeline, x: number): Mode {
  const { frame } = timeline;
  if (!frame || frame.view === frame.bounds) return 'brush';
  const left = toPixel(frame.bounds, frame.width, frame.view.start);
  const right = toPixel(frame.bounds, frame.width, frame.view.end);
  const whole = left <= 1 && right >= frame.width - 1;
  if (Math.abs(x - left) <= 6) return 'brush-start';
  if (Math.abs(x - right) <= 6) return 'brush-end';
  return !whole && x > left && x < right ? 'brush-move' : 'brush';
}

/** Moves what is being dragged to pixel `x`: a measured range, the view, or the brush. */
function dragTo(timeline: Timeline, drag: Drag, x: number): void {
  const { frame } = timeline;
  if (!frame) return;
  if (drag.mode === 'measure' || drag.mode === 'zoom') {
    const to = toValue(frame.view, frame.width, Math.max(0, Math.min(x, frame.width)));
    timeline.drag = { start: drag.from, end: to };
    timeline.invalidate('overlay');
    return;
  }
  if (drag.mode === 'pan') {
    const by = ((drag.x - x) / frame.width) * span(drag.view);
    timeline.show({ start: drag.view.start + by, end: drag.view.end + by }, `drag ${drag.x}`);
    return;
  }
  const value = toValue(frame.bounds, frame.width, Math.max(0, Math.min(x, frame.width)));
  const { view } = drag;
  const ranges: Partial<Record<Mode, Range>> = {
    brush: { start: Math.min(drag.from, value), end: Math.max(drag.from, value) },
    'brush-move': { start: view.start + value - drag.from, end: view.end + value - drag.from },
    'brush-start': { start: Math.min(value, view.end), end: view.end },
    'brush-end': { start: view.start, end: Math.max(value, view.start) },
  };
  timeline.show(ranges[drag.mode] ?? view, `brush ${drag.x}`);
}

/** The profiler window at a place of the head; null outside their row. */
export function windowUnder(timeline: Timeline, x: number, y: number): WindowInfo | null {
  const { frame, head } = timeline;
  return frame && head && y >= head.windowsTop - 1 ? windowAt(frame, head, x) : null;
}

/** A press without a drag, at (x, y) in pixels: centres the view, selects what is under it, or measures a step. */
function click(timeline: Timeline, drag: Drag, x: number, y: number, inHead: boolean): void {
  const { app, frame } = timeline;
  if (!frame) return;
  if (inHead && y < AXIS_TOP - 1) {
    if (drag.mode !== 'brush') return;
    const centre = toValue(frame.bounds, frame.width, x);
    const half = span(frame.view) / 2;
    timeline.show({ start: centre - half, end: centre + half });
    return;
  }
  if (inHead) {
    const time = timeline.timeAt(x, y);
    if (time && app.state.get().measure) app.measureRange(null);
    else if (time && isLoss(time.part)) timeline.choosePart(time.part, toValue(frame.view, frame.width, x));
    else if (windowUnder(timeline, x, y)) timeline.openWindowAt(toValue(frame.view, frame.width, x));
    return;
  }
  if (app.state.get().measure) {
    app.measureRange(null);
    return;
  }
  const step = Math.floor(toValue(frame.view, frame.width, x));
  if (frame.axis === 'step' && frame.level === 0 && frame.width / span(frame.view) >= STEP_PIXELS && step < frame.bounds.end) {
    app.measureRange({ start: step, end: step + 1 });
    return;
  }
}
