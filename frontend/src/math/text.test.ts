import assert from 'node:assert/strict';
import { test } from 'node:test';
import { advised, asDiff, clean, cleanCode, codeParts, held, humanise, ranges } from './text.ts';

test('control and direction characters cannot act', () => {
  const shown = clean('a\u0000b\u202Ec\u2066d\u200Be\u2028f\u001b[31mg');
  assert.doesNotMatch(shown, /[\u0000-\u001f\u200b-\u200f\u2028-\u202f\u2066-\u2069]/);
  assert.match(shown, /^a.b.c.d.e.f.\[31mg$/u);
});

test('half of a surrogate pair is replaced, whole ones stay', () => {
  assert.equal(clean('\ud800x'), '\ufffdx');
  assert.equal(clean('x\udc00'), 'x\ufffd');
  assert.equal(clean('🚀'), '🚀');
});

test('long text is clipped, with a mark', () => {
  const shown = clean('x'.repeat(10000), 50);
  assert.equal(shown.length, 50);
  assert.ok(shown.endsWith('…'));
});

test('anything can be shown', () => {
  assert.equal(clean(null), '');
  assert.equal(clean(undefined), '');
  assert.equal(clean(12), '12');
  assert.equal(clean('a\nb\tc'), 'a b c');
});

test('code keeps its lines', () => {
  assert.equal(cleanCode('a\n\tb\r\n'), 'a\n\tb\n');
  assert.equal(cleanCode('a\u0000'), 'a\ufffd');
  assert.equal(cleanCode(undefined), '');
});

test('names become words', () => assert.equal(humanise('input_wait_share'), 'input wait share'));

test('code spans are told from the text around them', () => {
  assert.deepEqual(codeParts('pass `--gpus all` to it'), [
    { code: false, text: 'pass ' }, { code: true, text: '--gpus all' }, { code: false, text: ' to it' },
  ]);
  assert.deepEqual(codeParts('a ` alone'), [{ code: false, text: 'a ` alone' }]);
  assert.deepEqual(codeParts('`x`'), [{ code: true, text: 'x' }]);
  assert.deepEqual(codeParts(''), []);
});

test('a number and its unit stay on one line', () => {
  assert.equal(held('5 m 40 s of 12 steps, 33 % more'), '5\u00a0m 40\u00a0s of 12 steps, 33\u00a0% more');
});

test('whole numbers in short', () => {
  assert.equal(ranges([5, 0, 1, 3, 4, 7, 3]), '0, 1, 3–5, 7');
  assert.equal(ranges([]), '');
});

test('a line of code that nobody wrote is cut, and the others stay', () => {
  assert.deepEqual(cleanCode(`a\n${'x'.repeat(2000)}\nb`).split('\n').map(({ length }) => length), [1, 501, 1]);
});

test('code that replaces something is a diff', () => {
  assert.equal(asDiff('ds = ds.map(f)', 'ds = ds.map(f,\n  g)'), '- ds = ds.map(f)\n+ ds = ds.map(f,\n+   g)');
  assert.equal(asDiff('', 'x = 1'), 'x = 1');
});

test('an advice is parted into what it says and what to check first', () => {
  const { why, checks } = advised('Sheet takes 1.3 s each time, and training waits. Does training go on the same without it? If so, do it once; __getitem__ must be thread-safe; this changes the order.');
  assert.equal(why, 'Sheet takes 1.3 s each time, and training waits. Do it once.');
  assert.deepEqual(checks, ['Does training go on the same without it?', '__getitem__ must be thread-safe.', 'This changes the order.']);
  assert.deepEqual(advised('Send fewer bytes.'), { why: 'Send fewer bytes.', checks: [] });
});
