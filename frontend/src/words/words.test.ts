import assert from 'node:assert/strict';
import { test } from 'node:test';
import { gpuCategories, hostCategories, slices } from './accounts.ts';
import { causeBeside, causeStyle, culprit } from './causes.ts';
import { learn } from './vocabulary.ts';
import type { WordedReport } from '../api/types.ts';
import { factsLine, fitLabel, frameworkText, runName } from './labels.ts';

test('unknown and hostile causes get the neutral style', () => {
  for (const cause of ['new_cause', '__proto__', 'constructor', '']) assert.equal(causeStyle(cause).title, 'Bottleneck');
});

test('an account shows every second it was given and nothing else', () => {
  const account = { step: 10, input_wait: 20, compile: 0, other: null, brand_new: 3, basis: 'windows' };
  const shown = slices(account, hostCategories());
  assert.deepEqual(shown.map(({ key, seconds }) => [key, seconds]), [['step', 10], ['input_wait', 20], ['brand_new', 3]]);
  assert.deepEqual(slices(null, gpuCategories()), []);
});

test('titles are the words of the server', () => {
  assert.equal(hostCategories()[1]?.title, 'input wait', 'without any, the name itself');
  learn({ causes: { throttled: { title: 'Throttled', glyph: '▲', colour: 'red', between_steps: false, part: '' } }, host: { input_wait: ['waiting for input', 'not ready'] }, gpu: {}, host_step: {} });
  assert.deepEqual([causeStyle('throttled').title, causeStyle('throttled').glyph], ['Throttled', '▲']);
  const beside = (title: string) => causeBeside({ cause: 'throttled', title });
  assert.deepEqual([beside('gpu3 is too hot'), beside('Throttled (thermal)'), beside('')], ['Throttled', '', '']);
  const [, wait] = slices({ step: 1, input_wait: 2 }, hostCategories());
  assert.deepEqual([wait?.title, wait?.explanation], ['waiting for input', 'not ready']);
});

test('the culprit is what the evidence names', () => {
  assert.equal(culprit({ culprit: 'map(f) takes 31.2 ms a batch' }), 'map(f) takes 31.2 ms a batch');
  assert.equal(culprit({}), '');
});

test('runs are named for people', () => {
  assert.equal(runName('.'), 'log directory');
  assert.equal(frameworkText({ name: 'tensorflow', version: '2.21', keras: '3.15' }), 'Keras 3.15 on TensorFlow 2.21');
  assert.equal(frameworkText(null), '');
  assert.equal(fitLabel({ fit_index: 1, start_ns: null, host: 'h', rank: 3 }), 'fit 2 · h · rank 3');
  assert.equal(fitLabel({ fit_index: 1, fits: 1000, start_ns: null, host: 'h' }), 'fits 2–1,001 · h');
  assert.equal(fitLabel({ trial: 'trial_a1', trial_config: 'lr=0.1', fit_index: 0, start_ns: null, host: '' }), 'trial_a1 · lr=0.1');
  const report = { steps: 1, step_ms: { mean: null, p50: null, p95: null }, thresholds_set: { 'input_bound.wait_pct': 90 } };
  assert.deepEqual(factsLine(report as unknown as WordedReport), ['1 step', 'input_bound.wait_pct=90']);
});
