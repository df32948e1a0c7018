/** One account as a bar with its legend: where the seconds of one thread or one GPU went. */
import { seconds, share } from '../math/format.ts';
import type { Slice } from '../words/accounts.ts';

interface Props {
  title: string;
  /** Says how sure the numbers are, e.g. "exact" or "estimate". */
  mark: string;
  markHint: string;
  slices: Slice[];
  total: number;
}

export function AccountBar({ title, mark, markHint, slices, total }: Props) {
  const sum = slices.reduce((all, slice) => all + slice.seconds, 0);
  const whole = Math.max(total, sum, 1e-9);
  return (
    <figure class="account">
      <figcaption>
        <span class="account-title">{title}</span>
        <span class={`mark mark-${mark}`} title={markHint}>
          {mark}
        </span>
      </figcaption>
      <div class="bar" aria-hidden="true">
        {slices.map((slice) => (
          <div
            key={slice.key}
            class={slice.idle ? 'bar-part idle' : 'bar-part'}
            style={{ flexGrow: slice.seconds / whole, background: `var(--${slice.colour})` }}
            title={`${slice.title}: ${seconds(slice.seconds)} (${share(slice.seconds, whole)}): ${slice.explanation}`}
          >
            <span>{share(slice.seconds, whole)}</span>
          </div>
        ))}
        {whole > sum * 1.005 && <div class="bar-part rest" style={{ flexGrow: (whole - sum) / whole }} />}
      </div>
      <ul class="legend">
        {slices.map((slice) => (
          <li key={slice.key} title={slice.explanation}>
            <i class={slice.idle ? 'swatch idle' : 'swatch'} style={{ background: `var(--${slice.colour})` }} />
            {slice.title} <b>{seconds(slice.seconds)}</b>
          </li>
        ))}
      </ul>
    </figure>
  );
}
