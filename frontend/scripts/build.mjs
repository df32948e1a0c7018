// Bundles the tab into one ES module and one stylesheet, committed under tensorboard_plugin/static/
// so that `pip install` needs no Node, and writes the notices of what it bundles into ../NOTICE. `--check` compares
// a fresh build with what is committed.
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';
import { minify } from 'terser';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const check = process.argv.includes('--check');
const outdir = join(root, '..', 'tensorboard_plugin', 'static');
const noticePath = join(root, '..', 'NOTICE');
const LIMIT = 90 * 1024;

// Fields and methods that stand neither in a reply, nor in the DOM, nor in a link.
const OURS = `again ahead announce announced announcing area arrived askLater bars best buckets bullet busy byKeyboard
canUndo choose coarse colours compareWith cursorAt descending drag drawAll drawn drawOver evict excess
explanation extra failed fetcher fetchEverything generation groupTitles grown heads help inFlight inHead
invalidate invalidateFrom lacks laneKey lastMove later layout layoutKey loadOne look marked
measureRange moved movePin moveRow neighbour notice nsWidth onData onGrown onInverse openWindow openWindowAt
overlayClear overviewLevel palette past patience phasesTop pixel pump recordingError relayout
resting runsError scales schedule scrolled scroller seen selection setAxis showHidden showSpan showWindow slices
sources stale stepAt stores strongLine surface surfaces themeChanged tick tilesError timeAt timer togglePin
touched undo used viewNow wake want wanted wantTiles windowsTop`.split(/\s+/);
const replies = await readFile(join(root, 'src', 'api', 'types.ts'), 'utf8');
const foreign = OURS.filter((name) => new RegExp(`\\b${name}\\b`).test(replies));
if (foreign.length > 0) throw new Error(`the server's replies have fields of these names: ${foreign.join(', ')}`);

const result = await build({
  absWorkingDir: root,
  entryPoints: { index: 'scripts/entry.mjs', style: 'src/style.css' },
  outdir,
  write: false,
  metafile: true,
  bundle: true,
  format: 'esm',
  target: ['es2022', 'chrome109', 'firefox115', 'safari16'],
  minify: true,
  legalComments: 'none',
  charset: 'utf8',
  // `h(type, props, ...children)` is shorter than what the type checker's setting would make.
  inject: ['scripts/jsx.mjs'],
  tsconfigRaw: { compilerOptions: { jsx: 'react', jsxFactory: 'h', jsxFragmentFactory: 'Fragment', target: 'ES2022' } },
  logLevel: 'warning',
});

// Every package of which something is in the bundle, by name, with its version and its licence's text.
async function bundledPackages() {
  const names = new Set();
  for (const output of Object.values(result.metafile.outputs)) {
    for (const [path, { bytesInOutput }] of Object.entries(output.inputs)) {
      const name = path.match(/.*node_modules\/((?:@[^/]+\/)?[^/]+)\//)?.[1];
      if (name && bytesInOutput > 0) names.add(name);
    }
  }
  return Promise.all(
    [...names].sort().map(async (name) => {
      const folder = join(root, 'node_modules', name);
      const { version } = JSON.parse(await readFile(join(folder, 'package.json'), 'utf8'));
      return { name, version, licence: (await readFile(join(folder, 'LICENSE'), 'utf8')).trim() };
    }),
  );
}

const packages = await bundledPackages();
const notices = packages.map(({ name, version, licence }) => `${name} ${version}\n\n${licence}\n`).join('\n');
const notice = `gpu-util-callback

tensorboard_plugin/static/index.js contains these packages, minified.

${notices}`;
// In the bundle, too: it is part of every offline page.
const banner = `/*!\n${notices}*/\n`;

// A second minifier takes off another four percent, and shortens what only our own code calls so. What it calls
// unsafe is code that redefines built-ins, or whose getters do more than get: there is none here.
const compress = { passes: 3, unsafe: true, unsafe_arrows: true, pure_getters: true };
const files = await Promise.all(
  result.outputFiles.map(async ({ path, text }) => {
    const mangle = { properties: { regex: new RegExp(`^(${OURS.join('|')})$`) } };
    const small = path.endsWith('.js') ? (await minify(text, { module: true, ecma: 2020, compress, mangle })).code : text;
    return { path, bytes: Buffer.from(path.endsWith('.js') ? banner + small : small) };
  }),
);
if (!check) {
  await mkdir(outdir, { recursive: true });
  for (const { path, bytes } of files) await writeFile(path, bytes);
  await writeFile(noticePath, notice);
}

let total = 0;
let stale = false;
for (const { path, bytes } of files) {
  const zipped = gzipSync(bytes, { level: 9 }).length;
  total += zipped;
  console.log(`${path.split(/[\\/]/).pop()}  ${bytes.length} bytes, ${zipped} gzipped`);
  if (check) {
    const committed = await readFile(path).catch(() => Buffer.alloc(0));
    if (!committed.equals(bytes)) {
      console.error(`  differs from the committed file: run \`npm run build\` and commit the result`);
      stale = true;
    }
  }
}
if (check && (await readFile(noticePath, 'utf8').catch(() => '')) !== notice) {
  console.error('NOTICE differs from what the bundle contains: run `npm run build` and commit the result');
  stale = true;
}
if (total > LIMIT) {
  console.error(`the bundle is ${total} bytes gzipped; the budget is ${LIMIT}`);
  stale = true;
}
process.exitCode = stale ? 1 : 0;
