// What JSX is made of, put into every module that has some.
export { Fragment, h } from 'preact';
