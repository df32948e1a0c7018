/** A small button: a sign, with its name as label and hint, and the key that does the same. */
interface Props {
  sign: string;
  name: string;
  keys?: string;
  disabled?: boolean;
  onClick: () => void;
}

export function Small({ sign, name, keys = '', disabled, onClick }: Props) {
  return (
    <button type="button" class="small" aria-label={name} title={`${name}  ${keys}`.trim()} disabled={disabled} onClick={onClick}>
      {sign}
    </button>
  );
}
