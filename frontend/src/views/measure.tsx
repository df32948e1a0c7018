/** The measured range: how long, how many steps, and each lane's own mean in it. */
import { count, seconds, withUnit, share } from '../math/format.ts';
import { shift, type Range } from '../math/range.ts';
import { otherAxisValue, type Source, type Frame } from '../timeline/frame.ts';
import { placeText } from '../timeline/overlay.ts';
import { valueOver } from '../timeline/readout.ts';
import { seriesColour } from '../words/accounts.ts';
import { clean } from '../math/text.ts';
import { seriesTitle, stepsText } from '../words/labels.ts';
import { useEffect } from 'preact/hooks';
import { useApp, useSelect, useTab } from './hooks.ts';
import { Small } from './small.tsx';
import { Heads } from './table.tsx';

/** The measured range: its length in steps and time, and the mean of each lane over it. */
export function Measure() {
  const { app, timeline } = useTab();
  const range = useApp((state) => state.measure);
  useSelect(timeline.drawn, (value) => value.count);
  // Of the lanes that are scrolled far away, too.
  useEffect(() => void timeline.fetchEverything(), [range]);
  const { frame } = timeline;
  const source = frame?.sources[0];
  if (!range || !frame || !source) return null;
  const far = [otherAxisValue(source.tiles, frame.axis, frame.level, range.start), otherAxisValue(source.tiles, frame.axis, frame.level, range.end)];
  const across = (far[1] as number) - (far[0] as number);
  const steps = frame.axis === 'step' ? range.end - range.start : across;
  const ns = frame.axis === 'time' ? range.end - range.start : across;
  const from = Math.floor(frame.axis === 'step' ? range.start : (far[0] as number));
  const isOneStep = frame.axis === 'step' && range.end - range.start === 1 && Number.isInteger(range.start);
  const traced = isOneStep ? source.recording.windows.find(({ first_step, stop_step }) => from >= first_step && from < stop_step) : undefined;
  let title = Number.isFinite(ns) ? seconds(ns / 1e9) : `${count(Math.round(steps))} steps`;
  if (isOneStep) title = `Step ${count(from)}`;
  return (
    <article class="measure">
      <header class="selected-nav">
        <span>{isOneStep ? 'One step' : 'Measured range'}</span>
        <Small sign="zoom" name="Zoom to this range" keys="f" onClick={() => timeline.show(range)} />
        <Small sign="✕" name="Clear the measured range" keys="Esc" onClick={() => app.measureRange(null)} />
      </header>
      <h2>{title}</h2>
      <p class="facts">
        {!isOneStep && Number.isFinite(steps) && Number.isFinite(from) && `${stepsText({ start_step: from, end_step: Math.round(from + steps) })} · ${count(Math.round(steps))} steps`}
        {isOneStep && placeText(frame, range.start)}
        {traced && (
          <>
            {' · '}
            <button type="button" class="linklike" onClick={() => app.openWindow({ number: traced.window, step: from })}>
              its kernels
            </button>
          </>
        )}
      </p>
      {frame.sources.map((shown) => (
        <Means key={shown.id} frame={frame} source={shown} one={isOneStep} range={shift(range, -shown.shift)} />
      ))}
    </article>
  );
}

/** A run's mean step and means of its lanes in a range of its own axis. */
function Means({ frame, source, one: isOneStep, range }: { frame: Frame; source: Source; one: boolean; range: Range }) {
  const { timeline } = useTab();
  const whose = frame.sources.length > 1 ? `${source.label}: ` : '';
  const caption = (exact: string, mean: string): string => whose + (isOneStep ? exact : `${frame.level > 0 ? '≈ ' : ''}${mean}`);
  const lanes = timeline.shape.get().layout.rows.flatMap((row) => (row.type === 'lane' && row.source === source.rowOwner ? row.lane : []));
  const stack = source.recording.lanes.find(({ kind }) => kind === 'stack');
  const parts = (stack?.series ?? []).map(({ name, title }) => ({
    name,
    title,
    value: stack ? valueOver(source.tiles, frame.axis, frame.level, stack, name, range) : null,
  }));
  const total = parts.reduce((sum, { value }) => sum + (value?.mean ?? 0), 0);
  return (
    <>
      <table class="evidence">
        <caption>{caption('Where it went', 'Average step')}</caption>
        <tbody>
          {parts.map(({ name, title, value }) => (
            <tr key={name}>
              <th scope="row">
                <i class="swatch" style={{ background: `var(--${seriesColour(name)})` }} /> {clean(title, 60)}
              </th>
              <td>{value ? seconds(value.mean / 1e3) : '–'}</td>
              <td>{value ? share(value.mean, total) : ''}</td>
            </tr>
          ))}
          <tr class="sum">
            <th scope="row">step</th>
            <td>{total > 0 ? seconds(total / 1e3) : '–'}</td>
            <td />
          </tr>
        </tbody>
      </table>
      <table class="evidence">
        <caption>{caption('Meanwhile', 'Averages in the range')}</caption>
        <Heads of={['lane', 'avg, min–max']} />
        <tbody>
          {lanes
            .filter(({ kind }) => kind !== 'stack')
            .flatMap((lane) =>
              lane.series.map((series) => {
                const value = valueOver(source.tiles, frame.axis, frame.level, lane, series.name, range);
                return (
                  value && (
                    <tr key={lane.id + series.name}>
                      <th scope="row">{seriesTitle(lane, series)}</th>
                      <td>
                        {withUnit(value.mean, lane.unit)}
                        <small>
                          {withUnit(value.min, lane.unit)} – {withUnit(value.max, lane.unit)}
                        </small>
                      </td>
                    </tr>
                  )
                );
              }),
            )}
        </tbody>
      </table>
    </>
  );
}
