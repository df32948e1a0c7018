/** One account as a bar with its legend: where the seconds of the thread, or of each GPU, went. */
import type { ComponentChildren } from 'preact';
import type { WordedReport } from '../api/types.ts';
import { duration, share } from '../math/format.ts';
import { clean, held } from '../math/text.ts';
import type { Slice } from '../words/accounts.ts';

interface Bar {
  name: string;
  slices: Slice[];
}

interface Props {
  title: string;
  /** Says how sure the numbers are: "measured" or "estimate". */
  mark: string;
  markHint: string;
  /** One for the thread, one for each GPU; several share the legend, which then gives their mean. */
  bars: Bar[];
  /** Wall time in seconds, so that all bars have one scale. */
  total: number;
  au?: WordedReport['au'];
  /** What stands in front of the bar of the closed account. */
  strip?: ComponentChildren;
  children?: ComponentChildren;
}

/** Shares of the whole below this are too narrow to be seen: the legend counts them together. */
const SMALL = 0.01;
/** Colours of the input's rate, the model's, and that of both. */
const RATES = ['amber', 'blue', 'slate'];

/** One slim bar with its largest parts; open, every bar with all of its parts, and `children`. */
export function AccountBar({ title, mark, markHint, bars, total, au, strip, children }: Props) {
  const whole = Math.max(total, ...bars.map(({ slices }) => sumOf(slices)), 1e-9);
  const { height, gap } = barSize(bars.length);
  const parts = meanOf(bars);
  const large = parts.filter((slice) => slice.seconds >= SMALL * whole);
  const small = parts.filter((slice) => !large.includes(slice));
  return (
    <details class="account">
      <summary>
        <span class="account-title">{title}</span>
        {mark && (
          <span class={`mark mark-${mark}`} title={markHint}>
            {mark}
          </span>
        )}
        {strip}
        {parts.length > 0 && <SliceBar slices={parts} whole={whole} name={bars.length > 1 ? 'avg' : ''} />}
        <Legend slices={[...large].sort((a, b) => b.seconds - a.seconds).slice(0, 2)} />
        {au && (
          <span class="au" title={clean(au.text, 400)}>
            {clean(au.name, 20)} <b>{clean(au.value, 20)}</b> <small class="dim">{clean(au.limits, 80)}</small>
          </span>
        )}
      </summary>
      {bars.length > 1 && (
        <div class="bars" aria-hidden="true" style={{ gap: `${gap}px` }}>
          {bars.map(({ name, slices }) => (
            <SliceBar key={name} slices={slices} whole={whole} name={name} height={height} />
          ))}
        </div>
      )}
      <Legend slices={large}>
        {small.length > 0 && (
          <li title={small.map((slice) => `${slice.title} ${duration(slice.seconds)}`).join('\n')}>
            {small.length === 1 ? small[0]?.title : `${small.length} others`} <b>{duration(sumOf(small))}</b>
          </li>
        )}
        {bars.length > 1 && <li title="Hover a bar for its own seconds">(avg)</li>}
      </Legend>
      {children}
    </details>
  );
}

function Legend({ slices, children }: { slices: Slice[]; children?: ComponentChildren }) {
  if (slices.length === 0) return null;
  return (
    <ul class="legend">
      {slices.map((slice) => (
        <li key={slice.key} title={slice.explanation}>
          <i class={slice.idle ? 'swatch idle' : 'swatch'} style={{ background: `var(--${slice.colour})` }} />
          {slice.title} <b>{duration(slice.seconds)}</b>
        </li>
      ))}
      {children}
    </ul>
  );
}

function SliceBar({ slices, whole, name, height }: { slices: Slice[]; whole: number; name: string; height?: number }) {
  return (
    <span class="bar" aria-hidden="true" style={height ? { height: `${height}px` } : undefined} data-name={height && height >= 14 ? name : undefined}>
      {slices.map((slice) => (
        <span
          key={slice.key}
          class={slice.idle && (height ?? 12) > 3 ? 'bar-part idle' : 'bar-part'}
          style={{ flexGrow: slice.seconds / whole, background: `var(--${slice.colour})` }}
          title={`${name} ${slice.title}: ${duration(slice.seconds)} (${share(slice.seconds, whole)}): ${slice.explanation}`.trim()}
        />
      ))}
      {whole > sumOf(slices) * 1.005 && <span class="bar-part rest" style={{ flexGrow: 1 - sumOf(slices) / whole }} />}
    </span>
  );
}

/** What was measured before training, each rate as a bar: which is the ceiling, and what raising it gains at most. */
export function Ceilings({ ceilings: { text, rows } }: { ceilings: NonNullable<WordedReport['ceilings']> }) {
  const most = Math.max(...rows.map((row) => row.per_s));
  return (
    <details class="account ceilings">
      <summary>
        <span class="account-title">Ceilings</span>{' '}
        <span class="mark" title="Before training, input and model were timed for some seconds, each without the other.">
          measured
        </span>{' '}
        <span class="clip">{held(clean(text, 400))}</span>
      </summary>
      <dl>
        {rows.map(({ name, batches, samples, per_s }, index) => (
          <div key={name}>
            <dt>{clean(name, 24)}</dt>
            <dd class="meter-track" aria-hidden="true">
              <i style={{ width: `${(100 * per_s) / most}%`, background: `var(--${RATES[index] ?? 'slate'})` }} />
            </dd>
            <dd>
              <b>{clean(batches, 40)}</b> <small class="dim">{clean(samples, 40)}</small>
            </dd>
          </div>
        ))}
      </dl>
    </details>
  );
}

/** Pixels of a bar and between bars: however many there are, they take no more than 64. */
function barSize(bars: number): { height: number; gap: number } {
  if (bars === 1) return { height: 24, gap: 0 };
  const gap = bars <= 8 ? 2 : bars <= 24 ? 1 : 0;
  return { height: Math.max(1, Math.min(16, Math.floor(64 / bars) - gap)), gap };
}

const sumOf = (slices: Slice[]): number => slices.reduce((all, slice) => all + slice.seconds, 0);

/** Means over the bars that are made of the same parts: one GPU was traced, of another NVML alone is known. */
function meanOf(bars: Bar[]): Slice[] {
  const found = new Map<string, Slice>();
  const kind = ({ slices }: Bar): boolean => slices.some(({ key }) => key === 'gpu_active' || key === 'idle');
  for (const bar of bars) {
    const alike = bars.filter((other) => kind(other) === kind(bar)).length;
    for (const slice of bar.slices) {
      const known = found.get(slice.key);
      found.set(slice.key, { ...slice, seconds: (known?.seconds ?? 0) + slice.seconds / alike });
    }
  }
  return [...found.values()];
}
