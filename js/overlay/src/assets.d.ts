/** What the bundler makes of files that are no code: the text of a style sheet, the URL of a font. */
declare module "*.css" {
  const text: string;
  export default text;
}
declare module "*.woff2" {
  const url: string;
  export default url;
}
