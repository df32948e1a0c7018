import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { RecordingReply } from '../api/types.ts';
import { App } from './app.ts';
import { defaultRecording } from './loader.ts';

const recording = {
  id: 'a', revision: 1, extent: { start_ns: 0, end_ns: 100e9, first_step: 0, last_step: 99 }, lanes: [], phases: [], problems: [],
  report: {
    run: 'a', status: 'ended',
    spans: [{ id: 'late', cause: 'input_bound', start_step: 50, end_step: 60 }, { id: 'early', cause: 'input_bound', start_step: 10, end_step: 20 }],
    findings: [{ id: 'whole', cause: 'small_batch' }],
    rows: [['late', 'early'], ['whole']].map((ids) => ({ ids, first: ids[0], lost_s: null, remedies: {} })),
  },
} as unknown as RecordingReply;

function app(): { app: App; clock: { at: number } } {
  const clock = { at: 0 };
  const made = new App(undefined, () => clock.at);
  made.state.set({ id: 'a', recordings: new Map([['a', recording]]) });
  return { app: made, clock };
}

test('each zoom can be undone, a held key as one', () => {
  const { app: tab, clock } = app();
  tab.look({ start: 0, end: 50 });
  for (let i = 0; i < 10; i++) {
    clock.at += 50;
    tab.look({ start: i, end: 50 }, 'keys');
  }
  clock.at += 2000;
  tab.look({ start: 20, end: 30 }, 'keys');
  tab.undo();
  assert.deepEqual(tab.state.get().view, { start: 9, end: 50 });
  tab.undo();
  assert.deepEqual(tab.state.get().view, { start: 0, end: 50 });
  tab.undo();
  assert.equal(tab.state.get().view, null);
  tab.undo();
  assert.equal(tab.state.get().view, null);
});

test('the places of a cause follow each other in the order of the axis, causes in that of the list, and wrap around', () => {
  const { app: tab } = app();
  assert.equal(tab.neighbour(1), 'early');
  tab.select('early');
  assert.equal(tab.neighbour(1), 'late');
  assert.equal(tab.neighbour(-1), 'late');
  assert.equal(tab.neighbourRow(1), 'whole');
  assert.equal(tab.neighbourRow(-1), 'whole');
  tab.select('whole');
  assert.equal(tab.selection?.cause, 'small_batch');
});

test('another recording starts at its whole, without the old undo', () => {
  const { app: tab } = app();
  tab.look({ start: 0, end: 5 });
  tab.select('late');
  tab.compareWith('b', true);
  tab.choose('b');
  assert.deepEqual([tab.state.get().view, tab.state.get().selected], [null, null]);
  assert.deepEqual(tab.state.get().compare, ['a'], 'what it was compared with is still beside it');
  assert.equal(tab.canUndo, false);
});

test('the axis keeps the same part of the run in view', () => {
  const { app: tab } = app();
  tab.look({ start: 10, end: 20 });
  tab.state.set({ axis: 'steps' });
  tab.setAxis('time', (range) => ({ start: range.start * 1e9, end: range.end * 1e9 }));
  assert.deepEqual(tab.state.get().view, { start: 10e9, end: 20e9 });
  tab.setAxis('clock', () => assert.fail('time and clock are one axis'));
  assert.deepEqual(tab.state.get().view, { start: 10e9, end: 20e9 });
});

test('zooms can be undone on the other axis, too', () => {
  const { app: tab } = app();
  tab.state.set({ axis: 'steps' });
  tab.look({ start: 10, end: 20 });
  tab.look({ start: 12, end: 13 });
  tab.look({ start: 14, end: 15 });
  // What was at 12 to 13 is not known on the other axis: it is left out.
  tab.setAxis('time', (range) => (range.start === 12 ? null : { start: range.start * 1e9, end: range.end * 1e9 }));
  assert.deepEqual(tab.state.get().view, { start: 14e9, end: 15e9 });
  tab.undo();
  assert.deepEqual(tab.state.get().view, { start: 10e9, end: 20e9 });
  tab.undo();
  assert.equal(tab.state.get().view, null);
  assert.equal(tab.canUndo, false);
});

test('pinned lanes keep the order they are given', () => {
  const { app: tab } = app();
  for (const key of ['x', 'y', 'z']) tab.togglePin(key);
  tab.togglePin('x');
  assert.deepEqual(tab.state.get().pinned, ['y', 'z']);
  tab.toggle('hidden', 'a');
  tab.showHidden();
  assert.equal(tab.state.get().hidden.size, 0);
});

test('state changes only tell listeners when something changed', () => {
  const { app: tab } = app();
  let told = 0;
  tab.state.subscribe(() => told++);
  tab.select('late');
  tab.select('late');
  tab.look(null);
  assert.equal(told, 1);
});

test('the newest live recording is shown first', () => {
  const item = (id: string, status: string, start_ns: number) => ({ id, status, start_ns }) as never;
  assert.equal(defaultRecording([item('a', 'ended', 9), item('b', 'live', 1), item('c', 'live', 2)])?.id, 'c');
  assert.equal(defaultRecording([item('a', 'ended', 9), item('b', 'lost', 1)])?.id, 'a');
  assert.equal(defaultRecording([]), null);
});

test('a run opens on the axis of time: what is lost between steps has no width on that of steps', () => {
  assert.equal(app().app.state.get().axis, 'time');
});
