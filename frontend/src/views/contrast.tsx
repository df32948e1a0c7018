/** A small chart in the details: the mean step inside the span, and that of steps with no finding. */
import type { WordedFinding, LaneInfo } from '../api/types.ts';
import { spanPieces, spanRange } from '../lanes/spans.ts';
import { seconds, share } from '../math/format.ts';
import { gaps, span, type Range } from '../math/range.ts';
import { clean } from '../math/text.ts';
import type { Frame } from '../timeline/frame.ts';
import { valueOver } from '../timeline/readout.ts';
import { seriesColour } from '../words/accounts.ts';
import { useSelect, useTab } from './hooks.ts';
import { causeStyle } from '../words/causes.ts';

interface Part {
  name: string;
  title: string;
  ms: number;
}

/** Mean parts of a step over several ranges together, weighed by their steps. */
function meanStep(frame: Frame, lane: LaneInfo, ranges: Range[], without: string): Part[] {
  const source = frame.sources[0];
  if (!source) return [];
  return lane.series.filter(({ name }) => name !== without).map(({ name, title }) => {
    let weight = 0;
    let sum = 0;
    for (const range of ranges) {
      const value = valueOver(source.tiles, frame.axis, frame.overviewLevel, lane, name, range);
      if (!value) continue;
      weight += span(range);
      sum += value.mean * span(range);
    }
    return { name, title: clean(title, 40), ms: weight > 0 ? sum / weight : 0 };
  });
}

/** The same parts with a sum that was measured more finely than tiles are. */
function scaled(parts: Part[], sum: unknown): Part[] {
  const all = total(parts);
  return typeof sum === 'number' && sum > 0 && all > 0 ? parts.map((part) => ({ ...part, ms: (part.ms * sum) / all })) : parts;
}

const total = (parts: Part[]): number => parts.reduce((sum, { ms }) => sum + ms, 0);

export function Contrast({ item }: { item: WordedFinding }) {
  const { timeline } = useTab();
  useSelect(timeline.drawn, ({ count }) => count);
  const { frame } = timeline;
  const source = frame?.sources[0];
  const lane = source?.recording.lanes.find(({ kind }) => kind === 'stack');
  // By steps only: elsewhere on the time axis there are validations and gaps, which are no steps.
  if (!frame || !source || !lane || frame.axis !== 'step') return null;
  const range = spanRange(item, frame.axis, source.recording.extent);
  const size = 2 ** frame.overviewLevel;
  if (!range || span(range) < 2 * size) return null;
  const taken = source.recording.report.spans.flatMap((one) => spanPieces(one, frame.axis, source.recording.extent));
  const elsewhere = gaps(frame.bounds, taken.map((one) => ({ start: one.start - size, end: one.end + size }))).filter((one) => span(one) >= 2 * size);
  // Compiling is no part of a usual step, unless it is what the finding is about.
  const without = causeStyle(item.cause).part === 'compile' ? '' : 'compile';
  const inside = scaled(meanStep(frame, lane, [range], without), item.evidence?.step_ms);
  const outside = meanStep(frame, lane, elsewhere, without);
  // Where steps elsewhere are no faster, they had their own reasons, or no finding covers all of it.
  if (!(total(outside) > 0) || total(outside) >= total(inside)) return null;
  const most = Math.max(total(inside), total(outside));
  return (
    <dl class="contrast" aria-label="Average step">
      <Row title="a step here" parts={inside} most={most} />
      <Row title="unaffected" parts={outside} most={most} />
    </dl>
  );
}

function Row({ title, parts, most }: { title: string; parts: Part[]; most: number }) {
  const all = total(parts);
  return (
    <>
      <dt>{title}</dt>
      <dd>
        <span class="contrast-bar" aria-hidden="true">
          {parts.map(({ name, title: part, ms }) => (
            <i
              key={name}
              class={name === 'input_wait' ? 'idle' : ''}
              style={{ width: `${(100 * ms) / most}%`, background: `var(--${seriesColour(name)})` }}
              title={`${part}: ${seconds(ms / 1e3)} (${share(ms, all)})`}
            />
          ))}
        </span>
        <b>{seconds(all / 1e3)}</b>
      </dd>
    </>
  );
}
