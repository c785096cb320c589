"""An example of a plug-in package for Zephon; nothing is imported here, so `import zephon` stays cheap for who doesn't use it."""
