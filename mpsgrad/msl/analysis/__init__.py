"""What can be told of Metal source without a C++ front end: its scopes, and the types of names and expressions."""
