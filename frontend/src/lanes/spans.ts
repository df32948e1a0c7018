/** Bottleneck spans and training-thread phases as boxes on the axis. Pure. */
import type { Extent, WordedFinding, PhaseReply } from '../api/types.ts';
import { toPixel, type Range } from '../math/range.ts';
import { clean, humanise } from '../math/text.ts';
import type { Axis } from '../tiles/request.ts';

export interface Box<T> {
  item: T;
  /** Extent in axis units. */
  range: Range;
  row: number;
}

/** Where a span lies on the axis, in steps or in ns since the recording began; null when it has no range there. */
export function spanRange(span: Partial<WordedFinding>, axis: Axis, extent: Extent): Range | null {
  if (axis === 'step') {
    if (typeof span.start_step !== 'number' || typeof span.end_step !== 'number') return null;
    return { start: span.start_step, end: Math.max(span.end_step, span.start_step) };
  }
  if (typeof span.start_ns !== 'number' || typeof span.end_ns !== 'number') return null;
  return { start: span.start_ns - extent.start_ns, end: span.end_ns - extent.start_ns };
}

/** Where the loss of a span lies on the axis: its pieces, or all of it. */
export function spanPieces(span: WordedFinding, axis: Axis, extent: Extent): Range[] {
  return (span.pieces ?? [span]).flatMap((piece) => spanRange(piece, axis, extent) ?? []);
}

/** Spans in the order of the axis, for stepping from one to the next. */
export const inOrder = (spans: readonly WordedFinding[]): WordedFinding[] =>
  [...spans].sort((a, b) => (a.start_step ?? 0) - (b.start_step ?? 0) || (a.start_ns ?? 0) - (b.start_ns ?? 0));

/** Where a phase lies, in units of the axis: on the axis of steps a place without length. */
export function phaseRange(phase: PhaseReply, axis: Axis, extent: Extent): Range {
  return axis === 'step'
    ? { start: phase.step, end: phase.step }
    : { start: phase.start_ns - extent.start_ns, end: phase.end_ns - extent.start_ns };
}

/**
 * The range of each epoch on the axis, in the order of time. An epoch is recorded when it ends, with the step reached by
 * then: its steps begin where the epoch before it ended.
 */
export function epochRanges(epochs: readonly PhaseReply[], axis: Axis, extent: Extent): { item: PhaseReply; range: Range }[] {
  let reached = extent.first_step;
  return [...epochs].sort((a, b) => a.start_ns - b.start_ns).map((item) => {
    const range = axis === 'step' ? { start: Math.min(reached, item.step), end: item.step } : phaseRange(item, axis, extent);
    reached = item.step;
    return { item, range };
  });
}

export const PHASE_COLOURS: Record<string, string> = {
  validation: 'validation',
  callback: 'callbacks',
  checkpoint: 'checkpoint',
  compilation: 'compile',
  input_setup: 'input',
  profiler_window: 'slate',
  gap: 'grey',
  between_fits: 'grey',
};

/** What phases of a kind are called. */
export const phaseKind = (kind: string): string => humanise(kind).replace('setup', 'set-up');

/** "validation: validation 2" without saying it twice. */
export function phaseTitle(phase: PhaseReply): string {
  const kind = phaseKind(phase.kind);
  const name = clean(phase.name, 120);
  return name && !name.startsWith(kind) ? `${kind}: ${name}` : name || kind;
}

/** A box in the pixels of a view. */
export interface Placed {
  x: number;
  width: number;
}

export type PixelBox<T> = Box<T> & Placed;

/** The boxes that can be seen in `view`, with their place in px: at least `least` px wide, `width` px of the canvas for the view. */
export function place<B extends Pick<Box<unknown>, 'range'>>(boxes: readonly B[], view: Range, width: number, least: number): (B & Placed)[] {
  const out: (B & Placed)[] = [];
  for (const box of boxes) {
    const left = toPixel(view, width, box.range.start);
    const right = Math.max(toPixel(view, width, box.range.end), left + least);
    if (right < 0 || left > width) continue;
    out.push({ ...box, x: left, width: right - left });
  }
  return out;
}
