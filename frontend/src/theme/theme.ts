/** Follows TensorBoard's dark mode, or the system's when there is no TensorBoard around us. */

function hostBody(): HTMLElement | null {
  try {
    return window.parent !== window ? window.parent.document.body : null;
  } catch {
    return null; // embedded from another origin
  }
}

/** Sets the class `dark` on the root element now and whenever it changes. */
export function followTheme(onChange: () => void): void {
  const body = hostBody();
  const system = matchMedia('(prefers-color-scheme: dark)');
  const forced = matchMedia('(forced-colors: active)');
  let last = '';
  const apply = (): void => {
    const dark = body ? body.classList.contains('dark-mode') : system.matches;
    document.documentElement.classList.toggle('dark', dark);
    const now = `${dark} ${forced.matches}`;
    if (now !== last) {
      last = now;
      onChange();
    }
  };
  apply();
  if (body) new MutationObserver(apply).observe(body, { attributes: true, attributeFilter: ['class'] });
  system.addEventListener('change', apply);
  forced.addEventListener('change', apply);
}
