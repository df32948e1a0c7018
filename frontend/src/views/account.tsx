/** One account as bars with their legend: where the seconds of the thread, or of each GPU, went. */
import { seconds, share } from '../math/format.ts';
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
}

/** Shares of the whole below this are too narrow to be seen: the legend counts them together. */
const SMALL = 0.01;

export function AccountBar({ title, mark, markHint, bars, total }: Props) {
  const whole = Math.max(total, ...bars.map(({ slices }) => sumOf(slices)), 1e-9);
  const { height, gap } = barSize(bars.length);
  const parts = meanOf(bars);
  const large = parts.filter((slice) => slice.seconds >= SMALL * whole);
  const small = parts.filter((slice) => !large.includes(slice));
  return (
    <figure class="account">
      <figcaption>
        <span class="account-title">{title}</span>
        <span class={`mark mark-${mark}`} title={markHint}>
          {mark}
        </span>
      </figcaption>
      <div class="bars" aria-hidden="true" style={{ gap: `${gap}px` }}>
        {bars.map(({ name, slices }) => (
          <div class="bar" key={name} style={{ height: `${height}px` }} data-name={bars.length > 1 && height >= 14 ? name : undefined}>
            {slices.map((slice) => (
              <div
                key={slice.key}
                class={slice.idle && height > 3 ? 'bar-part idle' : 'bar-part'}
                style={{ flexGrow: slice.seconds / whole, background: `var(--${slice.colour})` }}
                title={`${name} ${slice.title}: ${seconds(slice.seconds)} (${share(slice.seconds, whole)}): ${slice.explanation}`.trim()}
              >
                {height >= 14 && <span>{share(slice.seconds, whole)}</span>}
              </div>
            ))}
            {whole > sumOf(slices) * 1.005 && <div class="bar-part rest" style={{ flexGrow: 1 - sumOf(slices) / whole }} />}
          </div>
        ))}
      </div>
      <ul class="legend">
        {large.map((slice) => (
          <li key={slice.key} title={slice.explanation}>
            <i class={slice.idle ? 'swatch idle' : 'swatch'} style={{ background: `var(--${slice.colour})` }} />
            {slice.title} <b>{seconds(slice.seconds)}</b>
          </li>
        ))}
        {small.length > 0 && (
          <li title={small.map((slice) => `${slice.title} ${seconds(slice.seconds)}`).join('\n')}>
            {small.length === 1 ? small[0]?.title : `${small.length} others`} <b>{seconds(sumOf(small))}</b>
          </li>
        )}
        {bars.length > 1 && <li title="Hover a bar for its own seconds">(avg)</li>}
      </ul>
    </figure>
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
  const kind = ({ slices }: Bar): boolean => slices.some(({ key }) => key === 'kernel_active' || key === 'idle');
  for (const bar of bars) {
    const alike = bars.filter((other) => kind(other) === kind(bar)).length;
    for (const slice of bar.slices) {
      const known = found.get(slice.key);
      found.set(slice.key, { ...slice, seconds: (known?.seconds ?? 0) + slice.seconds / alike });
    }
  }
  return [...found.values()];
}
